// How far past its training length it works.
import { Chart, type Line } from "./chart";
import { content, type Lengths } from "./content";
import { Missing } from "./heads";

function entries(study: Lengths): string[] {
  return [...new Set(study.rows.map(title))];
}

function title(row: { positions: string; index: string }): string {
  return row.index === "sequential" ? row.positions : `${row.positions}, ${row.index}`;
}

function lines(study: Lengths, probe: string): Line[] {
  return entries(study).map((name) => {
    const own = study.rows.filter((row) => title(row) === name && row.probe === probe);
    const lengths = [...new Set(own.map((row) => row.length))].sort((p, q) => p - q);
    const at = (length: number): number[] => own.filter((row) => row.length === length).map((row) => row.accuracy).sort((p, q) => p - q);
    return {
      name,
      points: lengths.map((length) => [length, at(length)[Math.floor((at(length).length - 1) / 2)]!]),
      band: lengths.map((length) => [length, at(length)[0]!, at(length).at(-1)!]),
    };
  });
}

function Study({ study }: { study: Lengths }) {
  const probes = [...new Set(study.rows.map((row) => row.probe))];
  return (
    <section class="study">
      <h3>{study.task}, {study.track === "lab" ? "as the lab trains" : `${study.track} track`}</h3>
      {study.findings.map((each) => <p key={each}>{each}</p>)}
      {probes.slice(0, 2).map((probe) => (
        <div key={probe}>
          <h4>Probe {probe}: median of the seeds, from the worst to the best</h4>
          <Chart label={`accuracy by length, ${study.task}, ${probe}`} x="length" y="right" log shaded={study.train_lengths} lines={lines(study, probe)} />
        </div>
      ))}
      <div class="scroll" tabIndex={0} role="region" aria-label={`reach, ${study.task}`}>
        <table>
          <thead><tr><th>encoding</th><th>probe</th><th>worst seed reaches</th><th>median</th><th>by seed</th></tr></thead>
          <tbody>{study.reach.map((row) => (
            <tr key={title(row) + row.probe}><td>{title(row)}</td><td>{row.probe}</td><td class="number">{row.worst ?? "–"}</td><td class="number">{row.median ?? "–"}</td>
              <td>{Object.values(row.by_seed).map((each) => each ?? "not learned").join(", ")}</td></tr>
          ))}</tbody>
        </table>
      </div>
    </section>
  );
}

export function LengthsSection() {
  return (
    <>
      {content.certificates.map((each) => (
        <p key={each.run} class="certificate">Proved right at every length: {each.run}, {each.contexts.toLocaleString("en")} contexts, none wrong, smallest margin {each.smallest_margin.toFixed(1)}.</p>
      ))}
      {content.lengths.length ? content.lengths.map((study) => <Study key={study.name} study={study} />) : <Missing what="lengths" />}
    </>
  );
}
