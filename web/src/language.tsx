// How far a language model recalls: by length and by depth, under each cure, what stops it, and its loss by position.
import { useState } from "preact/hooks";
import { Chart, COLOURS, DASHES, type Line, type Upright } from "./chart";
import type { Bounds, Cause, Language, Losses, RecallRow } from "./content";
import { Findings } from "./evidence";
import { HeatTable } from "./heattable";
import { type Cells, Table } from "./save";

export const NONE = "none"; // no cure
const TASKS: Record<string, string> = {
  repeat: "A segment of random tokens comes a second time, and each of its tokens is to be continued as before.",
  "key-value": "A key is given again, and the token that followed it is to be named.",
  passkey: "A number that stands somewhere in a text is to be given again.",
};
const KNOWN: Record<string, string> = { given: "as given", config: "by its config", loss: "where its loss begins to rise" };
const UNLEARNED = "not learned";
const TRAINED_DASH = "7 4", RISES_DASH = "2 3";

export const count = (value: number): string => value.toLocaleString("en");
const share = (value: number | null | undefined): string => (value == null ? "–" : value.toFixed(2));
const called = (cure: string): string => (cure === NONE ? "untouched" : cure);

function span(bounds: Bounds | null | undefined, signed = false): string | null {
  if (!bounds || bounds[0] == null || bounds[1] == null) return null;
  const [low, high] = bounds.map((end) => (signed && end! > 0 ? "+" : "") + end!.toFixed(2).replace("-", "−"));
  return `${low} to ${high}`;
}

function curesOf(study: Language): string[] {
  return [...new Set(study.rows.map((row) => row.cure))].filter((cure) => cure !== NONE);
}

function rowsOf(study: Language, task: string, cure: string): RecallRow[] {
  return study.rows.filter((row) => row.task === task && row.cure === cure).sort((one, other) => one.length - other.length);
}

/** Of a cure, its colour and dash wherever it is drawn. */
function styleOf(study: Language, cure: string): { colour: string; dash: string } {
  if (cure === NONE) return { colour: "var(--ink)", dash: "" };
  const place = curesOf(study).indexOf(cure);
  return { colour: COLOURS[place % COLOURS.length]!, dash: DASHES[place % DASHES.length]! };
}

const pointsOf = (rows: RecallRow[]): [number, number][] => rows.flatMap((row) => (row.accuracy == null ? [] : [[row.length, row.accuracy] as [number, number]]));

/** The curves of a task; that of a cure begins at the training length, where it changes nothing. */
function linesOf(study: Language, task: string, cures: string[]): Line[] {
  const untouched = rowsOf(study, task, NONE), joint = untouched.filter((row) => row.length === study.trained);
  const band = untouched.flatMap((row) => (row.interval?.[0] == null || row.interval[1] == null ? [] : [[row.length, row.interval[0], row.interval[1]] as [number, number, number]]));
  return [
    { name: "untouched", points: pointsOf(untouched), band, bold: true, ...styleOf(study, NONE) },
    ...cures.flatMap((cure) => {
      const own = pointsOf(rowsOf(study, task, cure));
      return own.length ? [{ name: cure, points: [...pointsOf(joint), ...own], ...styleOf(study, cure) }] : [];
    }),
    { name: "chance", points: untouched.map((row) => [row.length, row.chance]), colour: "var(--soft)", dash: "3 4", bare: true },
  ];
}

const trainedUp = (study: Language): Upright => ({ x: study.trained, text: `trained on ${count(study.trained)} tokens`, dash: TRAINED_DASH });

function TaskCurves({ study, task, cures, bare }: { study: Language; task: string; cures: string[]; bare?: boolean }) {
  const untouched = rowsOf(study, task, NONE);
  const marks = [
    ...untouched.filter((row) => row.constant && row.accuracy != null).map((row) => ({ x: row.length, y: row.accuracy!, text: "one answer to nearly all", colour: "#d55e00" })),
    ...untouched.filter((row) => row.cannot_run != null).map((row) => ({ x: row.length, y: 0, text: "untouched: cannot run", colour: "#d55e00" })),
  ];
  return <Chart bare={bare} log label={`${bare ? "how far it recalls" : "recall by length"}, ${study.subject}, ${task}`} x="tokens of context" y="accuracy" lines={linesOf(study, task, cures)} uprights={[trainedUp(study)]} marks={marks} ticks={study.lengths} />;
}

/** For the headline: the learned task that stops first, untouched and under the cure chosen at the longest length. */
export function RecallPicture({ study }: { study: Language }) {
  const reach = study.effective.filter((each) => each.cure === NONE);
  const learned = reach.filter((each) => each.learned).sort((one, other) => (one.length ?? 0) - (other.length ?? 0));
  const task = learned[0]?.task ?? study.tasks[0]!, best = study.choices.at(-1)?.cure ?? NONE;
  return <TaskCurves study={study} task={task} cures={best === NONE ? [] : [best]} bare />;
}

/** Buttons that select one cure, or turn the curves of several off and on. */
function Cures({ study, says, drawn, chosen, choose }: { study: Language; says: string; drawn?: boolean; chosen: (cure: string) => boolean; choose: (cure: string) => void }) {
  return (
    <div class={drawn ? "presets drawn" : "presets"} role="group" aria-label={says}>
      <span class="note">{says}:</span>
      {curesOf(study).map((cure) => {
        const { colour, dash } = styleOf(study, cure);
        return (
          <button key={cure} aria-pressed={chosen(cure)} onClick={() => choose(cure)}>
            {drawn && <svg class="swatch" viewBox="0 0 22 10" aria-hidden="true"><line x1="0" x2="22" y1="5" y2="5" stroke={colour} stroke-width="3" stroke-dasharray={dash} /></svg>}{cure}
          </button>
        );
      })}
    </div>
  );
}

function Curves({ study }: { study: Language }) {
  const cures = curesOf(study), [hidden, hide] = useState<ReadonlySet<string>>(new Set());
  const shown = cures.filter((cure) => !hidden.has(cure));
  const turn = (cure: string): void => {
    const now = new Set(hidden);
    if (!now.delete(cure)) now.add(cure);
    hide(now);
  };
  return (
    <>
      {cures.length > 0 && <Cures study={study} says="Cures in the curves" drawn chosen={(cure) => !hidden.has(cure)} choose={turn} />}
      <div class="probes">
        {study.tasks.map((task) => (
          <div key={task}>
            <h4>{task}</h4>
            {TASKS[task] && <p class="note">{TASKS[task]}</p>}
            <TaskCurves study={study} task={task} cures={shown} />
          </div>
        ))}
      </div>
      <p class="note">The band is the 95% interval of the untouched model. Each cure is set for the length that it is measured at, and leaves shorter contexts as they are.</p>
    </>
  );
}

/** Where in the context a fact is still found: untouched, and under a cure that the reader selects. */
function Depths({ study }: { study: Language }) {
  const cures = curesOf(study), best = study.choices.at(-1)?.cure;
  const [cure, choose] = useState(best && cures.includes(best) ? best : cures[0]);
  const tables = study.tasks.flatMap((task) => [NONE, ...(cure ? [cure] : [])].map((each) => ({ task, cure: each, rows: rowsOf(study, task, each).filter((row) => row.accuracy != null) }))).filter((each) => each.rows.length);
  return (
    <>
      <h4>Where in the context</h4>
      <p>Accuracy by the length of the context and the depth of the fact in it: 0 is the beginning of the context, 1 its end, where the question stands.</p>
      {cures.length > 0 && <Cures study={study} says="Beside the untouched model" chosen={(each) => each === cure} choose={choose} />}
      <div class="heat-tables">
        {tables.map((each) => (
          <HeatTable key={`${each.task} ${each.cure}`} title={`${each.task}, ${called(each.cure)}`} depths={study.depths} lengths={study.lengths.filter((length) => each.cure === NONE || length > study.trained)} rows={each.rows} />
        ))}
      </div>
    </>
  );
}

function Bar({ name, value }: { name: string; value: number | null }) {
  return <><dt>{name}</dt><dd>{value == null ? "cannot run" : <><span class="bar" aria-hidden="true"><i style={{ width: `${100 * value}%` }} /></span><span class="number">{share(value)}</span></>}</dd></>;
}

function capital(text: string): string {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

function CauseCard({ each }: { each: Cause }) {
  const gain = span(each.gain, true), verdict = each.established ? "established" : each.cure ? "tried, not established" : null;
  return (
    <div class="card cause">
      <h4>{capital(each.cause)} {verdict && <span class={each.established ? "status pass" : "status warn"}>{verdict}</span>}</h4>
      <p class="note">{each.task}, at {count(each.length)} tokens</p>
      {each.cure && (
        <dl class="bars">
          <Bar name="untouched" value={each.before} />
          {each.sham && <Bar name={`with a sham: ${each.sham}`} value={each.sham_accuracy} />}
          <Bar name={`with its cure: ${each.cure}`} value={each.after} />
        </dl>
      )}
      {!each.cure && each.before != null && <p>Accuracy {share(each.before)}.</p>}
      {each.cause === "unknown" && <p>Nothing that was tried brings back more than its sham does.</p>}
      {each.evidence && each.evidence !== each.why_not && <p>{capital(each.evidence)}.</p>}
      {each.why_not ? <p>Why not: {each.why_not}.</p> : gain && <p>The cure changes the accuracy by {gain}, on the same questions.</p>}
    </div>
  );
}

function Causes({ causes }: { causes: Cause[] }) {
  const shown = causes.filter((each) => each.cause !== UNLEARNED); // those are in the summary
  if (!shown.length) return null;
  return (
    <>
      <h4>What stops it</h4>
      <p>A cause is established if undoing it brings answers back: more of them than a sham does, a change of the same kind and size that does not undo it, and more than the same cure brings in range, where there is nothing to cure.</p>
      <div class="cards">{shown.map((each) => <CauseCard key={each.task + each.cause + each.cure + each.length} each={each} />)}</div>
    </>
  );
}

const CHANGES = { helps: "▲", hurts: "▼" };

/** Whether a difference is shown to be above or below 0. */
function change(bounds: Bounds | null | undefined): keyof typeof CHANGES | null {
  if (bounds?.[0] == null || bounds[1] == null) return null;
  return bounds[0] > 0 ? "helps" : bounds[1] < 0 ? "hurts" : null;
}

function CureCell({ row, entry, alone }: { row: RecallRow | undefined; entry: Language["cures"][number] | undefined; alone: boolean }) {
  if (!row) return <td>–</td>;
  if (row.accuracy == null) return <td class="critical">cannot run</td>;
  const way = change(entry?.gain), inside = change(entry?.in_range_gain);
  return (
    <td class="number cure">
      <b class={way === "helps" ? "right" : way === "hurts" ? "wrong" : ""}>{share(row.accuracy)}{way && <span role="img" aria-label={way === "helps" ? "better than untouched" : "worse than untouched"}> {CHANGES[way]}</span>}</b>
      {span(row.interval) && <small>{span(row.interval)}</small>}
      {row.constant && <small class="critical">one answer to nearly all</small>}
      {entry?.in_range != null && !alone && <small class={inside === "hurts" ? "critical" : ""}>in range {share(entry.in_range)}{inside && <span role="img" aria-label={inside === "helps" ? "better than untouched" : "worse than untouched"}> {CHANGES[inside]}</span>}</small>}
    </td>
  );
}

function CureTable({ study, task }: { study: Language; task: string }) {
  const cures = [NONE, ...curesOf(study)].filter((cure) => rowsOf(study, task, cure).length);
  const lengths = study.lengths.filter((length) => cures.length === 1 || length > study.trained); // in range stands in the cells
  const entry = (cure: string, length: number) => study.cures.find((each) => each.task === task && each.cure === cure && each.length === length);
  const reach = (cure: string): string => {
    const found = study.effective.find((each) => each.task === task && each.cure === cure);
    return !found ? "–" : found.learned ? count(found.length ?? 0) : "not learned";
  };
  const csv = (): Cells[] => [
    ["cure", "length", "n", "accuracy", "low", "high", "chance", "in range"],
    ...cures.flatMap((cure) => rowsOf(study, task, cure).map((row) => [called(cure), row.length, row.examples, row.accuracy, ...(row.interval ?? [null, null]), row.chance, entry(cure, row.length)?.in_range])),
  ];
  return (
    <Table label={`cures by length, ${study.subject}, ${task}`} csv={csv}>
      <caption>{task}</caption>
      <thead><tr><th scope="col">cure</th>{lengths.map((length) => <th key={length} scope="col" class="number">{count(length)}</th>)}<th scope="col">effective length</th></tr></thead>
      <tbody>{cures.map((cure) => (
        <tr key={cure}><th scope="row">{called(cure)}</th>{lengths.map((length) => <CureCell key={length} row={rowsOf(study, task, cure).find((row) => row.length === length)} entry={entry(cure, length)} alone={cures.length === 1} />)}<td class="number">{reach(cure)}</td></tr>
      ))}</tbody>
    </Table>
  );
}

/** What cannot run, and the reason that the model gave; equal reasons are one line. */
function Stopped({ study }: { study: Language }) {
  const found = new Map<string, { cures: Set<string>; lengths: Set<number> }>();
  for (const row of study.rows.filter((each) => each.cannot_run != null)) {
    const own = found.get(row.cannot_run!) ?? { cures: new Set(), lengths: new Set() };
    own.cures.add(called(row.cure));
    own.lengths.add(row.length);
    found.set(row.cannot_run!, own);
  }
  return <>{[...found].map(([why, { cures, lengths }]) => <p key={why} class="note">Cannot run at {[...lengths].sort((p, q) => p - q).map(count).join(", ")} tokens: {[...cures].join(", ")}. <code>{why}</code></p>)}</>;
}

function CuresPart({ study }: { study: Language }) {
  const cured = curesOf(study).length > 0, answers = [...new Set(study.rows.map((row) => row.examples))].sort((p, q) => p - q);
  return (
    <>
      <h4>{cured ? "Cures side by side, without training" : "Accuracy by length"}</h4>
      {cured && <p>A cure changes how the model tells positions, or how it weighs what it attends to, by configuration alone. <i>In range</i> is what it leaves at {count(study.trained)} tokens when it is set for that length. ▲ and ▼ are shown to be better and worse than untouched, on the same questions.</p>}
      <p>Accuracy with its 95% interval, n = {answers.map(count).join(" or ")} answers at each length. The effective length is the longest up to which at least {share(study.share)} of the accuracy above chance in short contexts is shown to be left.</p>
      {study.tasks.map((task) => <CureTable key={task} study={study} task={task} />)}
      <Stopped study={study} />
      {study.choices.length > 0 && <h4>Which one to use</h4>}
      {study.choices.map((each) => (
        <div key={each.length} class="choice">
          <p>{each.sentence}</p>
          {each.config && <pre tabIndex={0} aria-label={`how to use ${each.cure} at ${count(each.length)} tokens`}>{each.config}</pre>}
        </div>
      ))}
    </>
  );
}

function LossPart({ study, losses }: { study: Language; losses: Losses }) {
  const bands = losses.bands.filter((band) => band.loss != null), middle = (band: Losses["bands"][number]): number => Math.sqrt(band.first * band.last);
  if (bands.length < 2) return null;
  const line: Line = {
    name: "loss on the text", colour: COLOURS[0], dash: "", bare: bands.length > 40,
    points: bands.map((band) => [middle(band), band.loss!]),
    band: bands.map((band) => [middle(band), band.interval[0] ?? band.loss!, band.interval[1] ?? band.loss!]),
  };
  const [least, most] = [middle(bands[0]!), middle(bands.at(-1)!)];
  const rises = losses.rises_at != null && losses.rises_at <= most ? [{ x: Math.max(least, losses.rises_at), text: `rises from ${count(losses.rises_at)} on`, dash: RISES_DASH, colour: "#d55e00" }] : [];
  const trained = study.trained >= least && study.trained <= most ? [trainedUp(study)] : [];
  const powers = Array.from({ length: 40 }, (_, power) => 2 ** power);
  return (
    <>
      <h4>Loss by position</h4>
      <Chart loose log label={`loss by position, ${study.subject}`} x="position" y="loss (nats)" lines={[line]} uprights={[...trained, ...rises]} ticks={powers} />
      <p class="note">{losses.windows} passages of {count(losses.length)} tokens of the text; the band is the 95% interval over passages. {losses.rises_at == null ? "The loss is not shown to rise with the position." : `From position ${count(losses.rises_at)} on it is shown to be higher than in the best octave before.`}</p>
    </>
  );
}

function describeUnlearned(study: Language, task: string): string {
  const first = rowsOf(study, task, NONE)[0], why = study.causes.find((each) => each.task === task && each.cause === UNLEARNED)?.evidence;
  const known = first?.accuracy == null ? "" : ` (accuracy ${share(first.accuracy)} at ${count(first.length)} tokens, chance ${share(first.chance)}${why ? `; ${why}` : ""})`;
  return `not learned${known}, so it has no effective length`;
}

function Summary({ study }: { study: Language }) {
  const reach = study.effective.filter((each) => each.cure === NONE);
  return (
    <dl class="summary">{reach.map((each) => (
      <><dt>{each.task}</dt><dd>{each.learned ? (each.length ? `effective length ${count(each.length)} tokens${each.length === study.lengths.at(-1) ? ", the longest tested" : ""}` : `not kept up even at ${count(study.lengths[0]!)} tokens`) : describeUnlearned(study, each.task)}</dd></>
    ))}</dl>
  );
}

export function LanguageStudy({ study }: { study: Language }) {
  return (
    <section class="study language">
      <h3>{study.subject}, a language model</h3>
      <p class="studied"><b>{study.family}</b>, trained on <b>{count(study.trained)}</b> tokens, {KNOWN[study.trained_from] ?? study.trained_from}. How well does it recall what stands in its context?</p>
      {study.withheld.length ? <Findings about="length" study={study.name} title="" open /> : (
        <>
          <Summary study={study} />
          <Curves study={study} />
          <Findings about="length" study={study.name} title="How far, what stops it and what helps, in words" />
          <Depths study={study} />
          <Causes causes={study.causes} />
          <CuresPart study={study} />
          {study.loss && <LossPart study={study} losses={study.loss} />}
        </>
      )}
    </section>
  );
}
