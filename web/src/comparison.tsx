// Many runs side by side: a dot for each, the median of a group as a line, and how many are missing.
import { signal } from "@preact/signals";
import { COLOURS, Legend, ticksOver, useWidth } from "./chart";
import { content, type Comparison, type Group, type Spread } from "./content";
import { Figure, Table, type Cells } from "./save";

const LISTED = 300; // groups in the table
const DRAWN = 60; // groups in a figure
const WIDE_RANGE = 100, WIDE_REACH = 8; // ratios of largest to smallest, above which an axis is logarithmic
const LETTERS = 26; // of a group's name beside a figure
const order = signal<Record<string, { by: string; down: boolean }>>({}); // of each comparison

/** Formats a number for people. */
function formatted(value: number | null): string {
  if (value == null) return "\u2013";
  if (Number.isInteger(value) || Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return Math.abs(value) >= 0.001 && Math.abs(value) < 1 ? value.toFixed(4) : String(Number(value.toPrecision(4)));
}

function nameOf(found: Comparison, row: Group): string {
  return found.by.map((key) => (row[key] == null ? "\u2013" : String(row[key]))).join(", ");
}

function range(each: Spread): string {
  return each.n > 1 && each.least !== each.most ? `${formatted(each.least)} to ${formatted(each.most)}` : "";
}

function bounds(each: Spread): string {
  return each.interval && each.interval[0] != null ? `${formatted(each.interval[0])} to ${formatted(each.interval[1])}` : "";
}

function sorted(found: Comparison): Group[] {
  const sorting = order.value[found.name];
  if (!sorting) return found.rows;
  const worth = (row: Group): unknown => (found.metrics.includes(sorting.by) ? row.metrics[sorting.by]!.median : row[sorting.by]);
  const copy = found.rows.slice().sort((one, other) => {
    const [x, y] = [worth(one), worth(other)];
    if (x == null || y == null) return Number(x == null) - Number(y == null) || 0;
    const smaller = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return sorting.down ? -smaller : smaller;
  });
  return copy;
}

function Groups({ found }: { found: Comparison }) {
  const amiss = (row: Group): string => [row.unfinished && `${row.unfinished} unfinished`, row.broken && `${row.broken} broken`].filter(Boolean).join(", ");
  const sorting = order.value[found.name];
  const sortBy = (by: string) => (order.value = { ...order.value, [found.name]: { by, down: sorting?.by === by ? !sorting.down : found.metrics.includes(by) } });
  const name = (by: string, title: string) => (
    <th key={by} aria-sort={sorting?.by === by ? (sorting.down ? "descending" : "ascending") : "none"}>
      <button onClick={() => sortBy(by)}>{title}{sorting?.by === by ? (sorting.down ? " ▼" : " ▲") : ""}</button>
    </th>
  );
  const parts = ["n", "missing", "median", "mean", "low", "high", "best", "worst", "least", "most"] as const;
  const csv = (): Cells[] => [
    [...found.by, "runs", "complete", "unfinished", "broken", "seeds", ...found.metrics.flatMap((metric) => parts.map((part) => `${metric}.${part}`))],
    ...sorted(found).map((row): Cells => [
      ...found.by.map((key) => row[key] as string | number | null), row.runs, row.complete, row.unfinished, row.broken, row.seeds,
      ...found.metrics.flatMap((metric) => {
        const each = row.metrics[metric]!, [low, high] = each.interval ?? [null, null];
        return parts.map((part) => (part === "low" ? low : part === "high" ? high : each[part]));
      }),
    ]),
  ];
  const rows = sorted(found);
  return (
    <>
      <Table label={`groups by ${found.by.join(", ")}`} csv={csv}>
        <thead><tr>{found.by.map((key) => name(key, key))}{name("runs", "runs")}{name("seeds", "seeds")}{found.metrics.map((metric) => name(metric, metric))}</tr></thead>
        <tbody>{rows.slice(0, LISTED).map((row) => (
          <tr key={nameOf(found, row)}>
            {found.by.map((key) => <td key={key}>{row[key] == null ? "\u2013" : String(row[key])}</td>)}
            <td class="number spread">{row.runs.toLocaleString("en")}{amiss(row) && <small>{amiss(row)}</small>}</td>
            <td class="number">{row.seeds.toLocaleString("en")}</td>
            {found.metrics.map((metric) => {
              const each = row.metrics[metric]!;
              return (
                <td key={metric} class="number spread">
                  <b>{formatted(each.median)}</b>{range(each) && <small>{range(each)}</small>}{bounds(each) && <small>mean {formatted(each.mean)}, 95%: {bounds(each)}</small>}
                  {each.unlearned > 0 && <small>{each.unlearned} did not learn</small>}{each.missing > each.unlearned && <small>{each.missing - each.unlearned} not measured</small>}
                </td>
              );
            })}
          </tr>
        ))}</tbody>
      </Table>
      {rows.length > LISTED && <p class="note">And {(rows.length - LISTED).toLocaleString("en")} more groups, in the CSV.</p>}
    </>
  );
}

interface Scale {
  at: (value: number) => number; // from 0 to 1
  ticks: number[];
}

/** A linear scale, or a logarithmic one with zero at its left end where the numbers are far apart. */
function scaleOf(values: number[], lengths: boolean): Scale {
  const [least, most] = [Math.min(...values), Math.max(...values)], above = values.filter((each) => each > 0);
  const small = above.length ? Math.min(...above) : 1;
  if (least < 0 || most <= (lengths ? WIDE_REACH : WIDE_RANGE) * small) {
    const ticks = ticksOver(least, most), [low, up] = [ticks[0]!, ticks.at(-1)!];
    return { at: (value) => (value - low) / (up - low), ticks };
  }
  const base = lengths ? 2 : 10, from = Math.floor(Math.log(small) / Math.log(base)) - (least === 0 ? 1 : 0), to = Math.max(from + 1, Math.ceil(Math.log(most) / Math.log(base) - 1e-9));
  const step = Math.ceil((to - from) / 7);
  const ticks = Array.from({ length: to - from + 1 }, (_, place) => from + place).filter((power) => (to - power) % step === 0 && (least > 0 || power > from)).map((power) => base ** power);
  const at = (value: number): number => (value <= 0 ? 0 : Math.max(0, (Math.log(value) / Math.log(base) - from) / (to - from)));
  return { at, ticks: least === 0 ? [0, ...ticks] : ticks };
}

function Dots({ found, metric }: { found: Comparison; metric: string }) {
  const rows = found.rows.slice(0, DRAWN), dots = found.dots[metric]!.slice(0, DRAWN);
  const all = dots.flat().map(([value]) => value), [home, wide] = useWidth(640);
  if (!all.length) return null;
  const names = rows.map((row) => nameOf(found, row)).map((name) => (name.length > LETTERS ? `${name.slice(0, LETTERS - 1)}…` : name));
  const left = 24 + 6.4 * Math.max(...names.map((name) => name.length)), right = 28, top = 8, line = 26, bottom = 44;
  const plot = top + line * rows.length, high = plot + bottom + 24;
  const { at, ticks } = scaleOf(all, metric.startsWith("reach"));
  const px = (value: number): number => left + at(value) * (wide - left - right);
  const py = (row: number): number => top + (row + 0.5) * line;
  const label = `${metric} by ${found.by.join(", ")}`;
  return (
    <Figure label={label}>
      <div ref={home}><svg class="curves dots" viewBox={`0 0 ${wide} ${high}`} role="img" aria-label={label}>
        {ticks.map((value) => (
          <g key={value}><line class="grid" x1={px(value)} x2={px(value)} y1={top} y2={plot} /><text x={px(value)} y={plot + 16} text-anchor="middle">{value >= 1e4 || (value && value < 1e-3) ? value.toExponential(0) : value}</text></g>
        ))}
        <text x={(left + wide - right) / 2} y={plot + 36} text-anchor="middle">{metric}</text>
        {rows.map((row, place) => (
          <g key={place}>
            <line class="grid" x1={left} x2={wide - right} y1={py(place)} y2={py(place)} />
            <text x={left - 12} y={py(place) + 4} text-anchor="end">{names[place]}<title>{nameOf(found, row)}</title></text>
            {row.metrics[metric]!.median != null && <line class="middle" style={{ color: COLOURS[1] }} x1={px(row.metrics[metric]!.median!)} x2={px(row.metrics[metric]!.median!)} y1={py(place) - 10} y2={py(place) + 10}><title>{`median of ${nameOf(found, row)}: ${formatted(row.metrics[metric]!.median)}`}</title></line>}
            <g style={{ color: COLOURS[0] }}>
              {dots[place]!.map(([value, run], n) => <circle key={run} cx={px(value)} cy={py(place) + (((n * 0.618034) % 1) - 0.5) * line * 0.5} r="3.5" class="dot"><title>{`${run}: ${formatted(value)}`}</title></circle>)}
            </g>
          </g>
        ))}
        <Legend samples={[{ name: "median", colour: COLOURS[1]!, dash: "" }]} left={left} top={high - 4} wide={wide - left} />
      </svg></div>
    </Figure>
  );
}

function Compared({ found }: { found: Comparison }) {
  const runs = found.rows.reduce((sum, row) => sum + row.runs, 0);
  return (
    <section class="study">
      <h3>{runs.toLocaleString("en")} runs by {found.by.join(", ")}</h3>
      {found.findings.map((each) => <p key={each}>{each}</p>)}
      <Groups found={found} />
      <p class="note">The median is bold; below it are the range, and the mean with its 95% interval over runs where there are two seeds or more.</p>
      {found.metrics.map((metric) => found.dots[metric]!.some((each) => each.length) && (
        <div key={metric}>
          <h4>{metric}: one dot per run{found.rows.length > DRAWN ? `, the first ${DRAWN} of ${found.rows.length.toLocaleString("en")} groups` : ""}</h4>
          <Dots found={found} metric={metric} />
        </div>
      ))}
    </section>
  );
}

export function ComparisonSection() {
  return <>{content.comparisons.map((found) => <Compared key={found.name} found={found} />)}</>;
}
