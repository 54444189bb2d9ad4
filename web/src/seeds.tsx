// How results differ from seed to seed: a single seed gives no error bar.
import { COLOURS, Legend, legendHeight } from "./chart";
import { content } from "./content";
import { Findings } from "./evidence";
import { Figure, Table } from "./save";

const LISTED = 30;

function middle(values: number[]): number {
  return values.slice().sort((p, q) => p - q)[Math.floor((values.length - 1) / 2)]!;
}

function range(values: number[], digits = 0): string {
  const [least, most] = [Math.min(...values), Math.max(...values)].map((each) => each.toFixed(digits));
  return `median ${middle(values).toFixed(digits)}, from ${least} to ${most}`;
}

/** How many runs have each count: one colour for each kind of count. */
export function Counts({ small }: { small?: boolean }) {
  const seeds = content.seeds, kinds = [["can go together", seeds.map((each) => each.together)], ["cost little one at a time", seeds.map((each) => each.alone)]] as const;
  const all = kinds.flatMap(([, counts]) => counts), [least, most] = [Math.min(...all), Math.max(...all)];
  const at = (counts: number[], value: number): number => counts.filter((each) => each === value).length;
  const top = Math.max(...kinds.flatMap(([, counts]) => counts.map((value) => at(counts, value))));
  const wide = small ? 420 : 640, high = 220, left = 44, bottom = 38, bar = (wide - left - 12) / (most - least + 1);
  const py = (count: number): number => 10 + (1 - count / top) * (high - 10 - bottom);
  const samples = kinds.map(([name], kind) => ({ name, colour: COLOURS[kind]! }));
  return (
    <Figure label="how many heads, over the seeds">
      <svg style={{ minWidth: small ? 0 : "26rem" }} viewBox={`0 0 ${wide} ${high + 8 + legendHeight(samples.map((each) => each.name), wide - left)}`} role="img" aria-label="how many heads, over the seeds">
        {[0, top].map((count) => <g key={count}><line class="grid" x1={left} x2={wide - 12} y1={py(count)} y2={py(count)} /><text x={left - 6} y={py(count) + 4} text-anchor="end">{count}</text></g>)}
        {kinds.map(([name, counts], kind) => [...new Set(counts)].map((value) => (
          <rect key={name + value} x={left + (value - least) * bar + 2 + (kind * (bar - 4)) / 2} width={(bar - 4) / 2} y={py(at(counts, value))} height={py(0) - py(at(counts, value))} fill={COLOURS[kind]!}>
            <title>{`${value} heads ${name}: ${at(counts, value)} of ${seeds.length} runs`}</title>
          </rect>
        )))}
        {Array.from({ length: most - least + 1 }, (_, place) => <text key={place} x={left + (place + 0.5) * bar} y={high - bottom + 16} text-anchor="middle">{least + place}</text>)}
        <text x={(left + wide) / 2} y={high - 4} text-anchor="middle">heads</text>
        <text transform={`translate(12 ${high / 2 - 12}) rotate(-90)`} text-anchor="middle">runs</text>
        <Legend samples={samples} left={left} top={high + 16} wide={wide - left} />
      </svg>
    </Figure>
  );
}

export function SeedsPart() {
  const seeds = content.seeds;
  if (!seeds.length) return null;
  if (seeds.length === 1)
    return <><h3>Over seeds</h3><p>One seed was studied. Another seed may need different heads, and a different number of them. To see how far they differ, run <code>headway train addition --seeds 10 --out runs/ten</code>, then <code>headway heads runs/ten</code>.</p></>;
  return (
    <>
      <h3>Over {seeds.length.toLocaleString("en")} seeds</h3>
      <p>Heads that can go together: {range(seeds.map((each) => each.together))}. Heads that cost little one at a time: {range(seeds.map((each) => each.alone))}; accuracy with all of those removed: {range(seeds.map((each) => each.alone_removed_together), 3)}.</p>
      <div class="beside"><Counts /><Findings about="seeds" title="The findings in words" /></div>
      {seeds.length <= LISTED && (
        <Table label="heads over the seeds">
          <thead><tr><th>run</th><th>cost little alone</th><th>accuracy without all of these</th><th>can go together</th><th>accuracy without those</th><th>critical</th></tr></thead>
          <tbody>{seeds.map((each) => (
            <tr key={each.subject}><td>{each.subject}</td><td class="number">{each.alone}</td><td class="number">{each.alone_removed_together.toFixed(4)}</td><td class="number">{each.together}</td><td class="number">{each.together_accuracy.toFixed(4)}</td><td class="number">{each.critical.length}</td></tr>
          ))}</tbody>
        </Table>
      )}
    </>
  );
}
