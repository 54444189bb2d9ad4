// How far past its training length it works, and what stops it.
import { Chart, type Line } from "./chart";
import { content, type Lengths } from "./content";
import { fixed } from "./cost";
import { Encodings } from "./encodings";
import { Findings } from "./evidence";
import { LanguageStudy } from "./language";
import { Learned, learningOf } from "./learning";
import { Missing } from "./missing";
import { spoken } from "./names";
import { ReachingPart } from "./reaching";
import { Table } from "./save";

const STOPS: Record<string, string> = { fails: "failing", undecided: "too few problems to decide", cannot_run: "the model cannot run", one_answer: "a constant answer would do as well", tested_to_the_end: "the longest length tested" };
const DRAWN = 2; // probes; the others are collapsed
const LISTED = 6; // encodings, above which the table says it better

function title(row: { positions: string; index: string }): string {
  return row.index === "sequential" ? row.positions : `${row.positions}, ${row.index}`;
}

/** The probe to show first: of a user's model that holds in range, the one on which it stops first. */
export function firstProbe(study: Lengths): string | undefined {
  const rows = study.reach, sound = study.subject && !rows[0]?.fails_in_range;
  return (sound ? rows.slice().sort((one, other) => (one.worst ?? 0) - (other.worst ?? 0)) : rows)[0]?.probe;
}

export function linesOf(study: Lengths, probe: string): Line[] {
  return [...new Set(study.rows.map(title))].map((name) => {
    const own = study.rows.filter((row) => title(row) === name && row.probe === probe);
    const lengths = [...new Set(own.map((row) => row.length))].sort((p, q) => p - q);
    const interval = (length: number): [number, number] => own.find((row) => row.length === length)!.interval;
    const at = (length: number): number[] => own.filter((row) => row.length === length).map((row) => row.accuracy).sort((p, q) => p - q);
    return {
      name,
      points: lengths.map((length) => [length, at(length)[Math.floor((at(length).length - 1) / 2)]!]),
      band: lengths.map((length) => (study.subject ? [length, ...interval(length)] : [length, at(length)[0]!, at(length).at(-1)!])),
    };
  });
}

/** For each encoding and probe: where the seeds fail, the causes with their counts, and one diagnosis in words. */
function Failures({ study }: { study: Lengths }) {
  const groups = new Map<string, Lengths["diagnosis"]>();
  for (const each of study.diagnosis) {
    const name = `${title(each)}|${each.probe}`;
    groups.set(name, [...(groups.get(name) ?? []), each]);
  }
  if (!groups.size) return null;
  return (
    <>
      <h4>{study.subject ? "Why it fails" : "Why each fails"}</h4>
      <Table label={`why each fails, ${study.task}`}>
        <thead><tr><th>{study.subject ? "model" : "encoding"}</th><th>probe</th><th>fails first at</th><th>{study.subject ? "causes" : "causes (seeds)"}</th><th>{study.subject ? "diagnosis" : "diagnosis of one seed"}</th></tr></thead>
        <tbody>{[...groups].map(([name, found]) => {
          const causes = [...new Set(found.flatMap((each) => each.causes))].map((cause) => study.subject ? cause : `${cause} (${found.filter((each) => each.causes.includes(cause)).length} of ${found.length})`);
          return (
            <tr key={name}><td>{title(found[0]!)}</td><td>{found[0]!.probe}</td><td class="number">{[...new Set(found.map((each) => each.length))].sort((p, q) => p - q).join(", ")}</td>
              <td>{causes.join(", ") || "no known cause"}</td><td>{spoken(found[0]!.sentence)}</td></tr>
          );
        })}</tbody>
      </Table>
    </>
  );
}

/** Of a user's model: where it cannot run, and where its answers hardly vary. */
function Remarks({ remarks, label }: { remarks: NonNullable<Lengths["remarks"]>; label: string }) {
  if (!remarks.length) return null;
  return (
    <>
      <h4>Where it cannot run, or its answers hardly vary</h4>
      <Table label={label}>
        <thead><tr><th>probe</th><th>lengths</th><th>what happens</th></tr></thead>
        <tbody>{remarks.map((row) => <tr key={row.probe + row.remark}><td>{row.probe}</td><td class="number">{row.lengths.map((each) => each.toLocaleString("en")).join(", ")}</td><td>{row.remark}</td></tr>)}</tbody>
      </Table>
    </>
  );
}

function Curve({ study, probe }: { study: Lengths; probe: string }) {
  return (
    <div>
      <h4>Probe {probe}</h4>
      <Chart label={`accuracy by length, ${study.task}, ${probe}`} x="length" y="accuracy" log shaded={study.train_lengths} lines={linesOf(study, probe)} />
    </div>
  );
}

/** One line for each entry: how far its worst seed works, on the probes on which it does. */
function summary(study: Lengths): [string, string][] {
  const names = [...new Set(study.reach.map(title))];
  return names.map((name) => {
    const rows = study.reach.filter((row) => title(row) === name);
    if (rows.every((row) => row.worst == null)) return [name, "did not learn in range"];
    return [name, rows.map((row) => `${row.probe} ${row.worst ? `up to ${row.worst.toLocaleString("en")}` : "not even in range"}`).join(", ")];
  });
}

function Study({ study }: { study: Lengths }) {
  const names = new Set(study.reach.map(title)).size;
  const probes = [...new Set(study.rows.map((row) => row.probe))];
  const failing = (row: Lengths["reach"][number]): number => Object.values(row.by_seed).every((each) => each == null) ? Infinity : (row.fails_in_range?.length ?? 0); // entries that hold in range come first
  const board = study.reach.slice().sort((one, other) => one.probe.localeCompare(other.probe) || (failing(one) === failing(other) ? 0 : failing(one) - failing(other)) || (other.worst ?? -1) - (one.worst ?? -1) || (other.median ?? -1) - (one.median ?? -1));
  return (
    <section class="study">
      <h3>{study.subject ? `${study.subject}, as it is` : study.task}{study.subject ? "" : ", "}{study.subject ? "" : study.track === "lab" ? "trained by the lab" : `${study.track} track`}</h3>
      <div class="probes">{probes.slice(0, DRAWN).map((probe) => <Curve key={probe} study={study} probe={probe} />)}</div>
      <p class="note">{study.subject ? "With the 95% interval of each point." : "Median and range of the seeds."} Trained lengths, {study.train_lengths.join(" to ")}, are shaded.</p>
      {names <= LISTED && <dl class="summary">{summary(study).map(([name, far]) => <><dt>{name}</dt><dd>{far}</dd></>)}</dl>}
      <Findings about="length" study={study.name} title="How far, and what stops it, in words" />
      {probes.length > DRAWN && (
        <details>
          <summary>{probes.length - DRAWN} more probes: {probes.slice(DRAWN).join(", ")}</summary>
          <div class="probes">{probes.slice(DRAWN).map((probe) => <Curve key={probe} study={study} probe={probe} />)}</div>
        </details>
      )}
      <h4>{study.subject ? "Reach on each probe" : "Reach of each encoding"}</h4>
      <p>The longest length up to which accuracy is shown to be at least 0.99, with 95% confidence for all points together.{study.subject ? "" : " Sorted by the worst seed; those that do not hold on every probe in range come last."}</p>
      <Table label={`reach, ${study.task}`}>
        <thead><tr><th>probe</th><th>{study.subject ? "model" : "encoding"}</th><th>{study.subject ? "reach" : "reach of the worst seed"}</th>{!study.subject && <><th>median</th><th>by seed</th></>}<th>stopped by</th><th>does not hold in range</th></tr></thead>
        <tbody>{board.map((row) => (
          <tr key={title(row) + row.probe}><td>{row.probe}</td><td>{title(row)}</td><td class="number">{row.worst ?? "–"}</td>{!study.subject && <><td class="number">{row.median ?? "–"}</td>
            <td>{Object.values(row.by_seed).map((each) => each ?? "not learned").join(", ")}</td></>}<td>{STOPS[row.stopped_by ?? ""] ?? "–"}</td><td>{row.fails_in_range?.join(", ") ?? ""}</td></tr>
        ))}</tbody>
      </Table>
      <Failures study={study} />
      <Remarks remarks={study.remarks ?? []} label={`where answers hardly vary, ${study.subject}`} />
      <Encodings signals={study.signals} />
    </section>
  );
}

export function LengthsSection() {
  return (
    <>
      {content.certificates.map((each) => {
        const statement = `Proved right at every length: ${each.run}, ${each.contexts.toLocaleString("en")} contexts, none wrong, smallest margin ${fixed(each.smallest_margin, 1)}.`;
        return each.refused ? <p key={each.run} class="certificate withheld"><s>{statement}</s> Invalid: {each.refused}.</p> : <p key={each.run} class="certificate">{statement}</p>;
      })}
      {content.languages.map((study) => <LanguageStudy key={study.name} study={study} />)}
      {content.lengths.length ? content.lengths.map((study) => <Study key={study.name} study={study} />) : !content.languages.length && <Missing what="lengths" />}
      <ReachingPart />
      <Learned runs={learningOf("length")} title="How these runs learned" />
    </>
  );
}
