// Encodings that do reach: not made by this lab, but measured or proved earlier and shipped with the package.
import { Chart } from "./chart";
import { content, type Shipped } from "./content";
import { Details } from "./evidence";

const TITLES: Record<string, string> = { fire: "FIRE", kerple: "Kerple", "window+behind=1+ahead=0": "A window of one neighbour" };

function Measured({ each }: { each: Shipped["measured"][number] }) {
  const reach = (probe: string): number => each.probes.find((found) => found.probe === probe)?.worst ?? 0;
  const names = each.probes.map((found) => found.probe), failing = each.fails_in_range;
  const details = {
    "problems": `${each.examples.toLocaleString("en")} at each length of each probe`, "seeds": String(each.seeds), "task": each.task, "track": each.track, "trained up to": String(each.trained),
    "reach of the worst seed": each.probes.map((found) => `${found.probe} ${(found.worst ?? 0).toLocaleString("en")}`).join(", "), "source": each.source, "command": each.command,
  };
  return (
    <div class="card">
      <h4>{TITLES[each.positions] ?? each.positions}</h4>
      <p>{failing.length ? <>At least 0.99 up to {reach(names[0]!).toLocaleString("en")} on the probe {names[0]}, but it <b>fails {failing.join(" and ")} even in range</b>: it survives long input, and did not learn sortedness.</> : <>At least 0.99 up to {Math.min(...names.map(reach)).toLocaleString("en")} on <b>all {names.length} probes</b>, as far as was tested.</>}</p>
      <Chart compact log label={`accuracy by length, shipped, ${each.positions}`} x="length" y="accuracy" shaded={[each.trained / 2, each.trained]}
        lines={each.probes.filter((found) => [names[0], "one-inversion"].includes(found.probe)).map((found) => ({ name: `${found.probe}, worst seed`, points: found.points.map(([length, low]) => [length, low]), band: found.points }))} />
      <details><summary>evidence</summary><Details of={details} /></details>
    </div>
  );
}

function Proved({ each }: { each: Shipped["proved"][number] }) {
  const what = each.task === "addition" ? "certified adder" : "certified sorter", unit = each.task === "addition" ? "digits" : "elements";
  const details = {
    "contexts checked": each.contexts.toLocaleString("en"), "wrong": String(each.wrong), "smallest margin": each.smallest_margin.toFixed(1), "bound of rounding": each.rounding_bound.toFixed(3),
    "holds for": `these weights in ${each.dtype}`, "parameters": each.parameters.toLocaleString("en"), "source": each.source, "command": each.command,
  };
  return (
    <div class="card proved">
      <h4>The {what}</h4>
      <p class="proof" aria-hidden="true">{each.trained} <span>→</span> ∞</p>
      <p>Trained on at most {each.trained} {unit}, and <b>proved right at every length</b>: what it answers depends on finitely many local contexts, and all {each.contexts.toLocaleString("en")} were checked.</p>
      <details><summary>evidence</summary><Details of={details} /></details>
    </div>
  );
}

export function ReachingPart() {
  const shipped = content.shipped;
  if (!shipped) return null;
  return (
    <section class="reaching" aria-label="encodings that do reach">
      <h3>Encodings that do reach</h3>
      <p class="marked">{shipped.note[0]!.toUpperCase() + shipped.note.slice(1)}.</p>
      <div class="cards">
        {shipped.measured.map((each) => <Measured key={each.positions} each={each} />)}
        {shipped.proved.map((each) => <Proved key={each.name} each={each} />)}
      </div>
    </section>
  );
}
