// Which heads it needs: each alone with its interval, and what happens when several go.
import { signal } from "@preact/signals";
import { Chart, COLOURS } from "./chart";
import { content, type HeadRow, type Heads } from "./content";
import { Grid } from "./grid";
import { Missing } from "./missing";
import { headTitle, shortHead } from "./names";
import { PatternsPart } from "./patterns";
import { RolesPart } from "./roles";
import { Table } from "./save";
import { SeedsPart } from "./seeds";
import { chosen } from "./state";

type Column = "head" | "accuracy" | "drop" | "verdict" | "pattern";
const MOST_DRAWN = 64; // heads, above which every pair of them is no picture
const order = signal<{ by: Column; down: boolean }>({ by: "drop", down: true });

function sorted(rows: HeadRow[]): HeadRow[] {
  const { by, down } = order.value;
  const copy = rows.slice().sort((one, other) => {
    const [x, y] = [one[by] ?? "", other[by] ?? ""];
    return typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
  });
  return down ? copy.reverse() : copy;
}

function Ranking({ rows }: { rows: HeadRow[] }) {
  const name = (by: Column, title: string) => (
    <th aria-sort={order.value.by === by ? (order.value.down ? "descending" : "ascending") : "none"}>
      <button onClick={() => (order.value = { by, down: order.value.by === by ? !order.value.down : by === "drop" })}>
        {title}{order.value.by === by ? (order.value.down ? " ▼" : " ▲") : ""}
      </button>
    </th>
  );
  const most = Math.max(...rows.map((row) => row.interval?.[1] ?? row.drop), 0.01);
  return (
    <Table label="ranking of heads" id="ranking">
      <thead><tr>{name("head", "head")}{name("accuracy", "right without it")}{name("drop", "cost, with interval")}{name("verdict", "verdict")}{name("pattern", "looks")}</tr></thead>
      <tbody>
        {sorted(rows).map((row) => (
          <tr key={row.head} class={chosen.value === row.head ? "chosen" : ""} onClick={() => (chosen.value = row.head)}>
            <td><button class="plain" onClick={() => (chosen.value = row.head)}>{headTitle(row.head)}</button></td>
            <td class="number">{row.accuracy.toFixed(4)}</td>
            <td>
              <span class="bar">
                <i style={{ width: `${(100 * Math.max(row.drop, 0)) / most}%` }} />
                {row.interval && <u style={{ left: `${(100 * Math.max(row.interval[0], 0)) / most}%`, width: `${(100 * (row.interval[1] - Math.max(row.interval[0], 0))) / most}%` }} />}
              </span>
              <span class="number">{row.drop.toFixed(4)}{row.interval && <small> ({row.interval[0].toFixed(4)} to {row.interval[1].toFixed(4)})</small>}</span>
            </td>
            <td class={row.verdict}>{row.verdict}</td>
            <td>{row.pattern ?? "–"}</td>
          </tr>
        ))}
      </tbody>
    </Table>
  );
}

function Curves({ heads }: { heads: Heads }) {
  const shown = heads.curves.filter((curve) => !curve.order.startsWith("random") || curve.order === "random 0");
  const marks = [];
  if (heads.alone && heads.alone_removed_together)
    marks.push({ x: heads.alone.count, y: heads.alone_removed_together.accuracy, colour: COLOURS[1]!, text: `all ${heads.alone.count} that are cheap alone: ${heads.alone_removed_together.accuracy.toFixed(3)}` });
  if (heads.together)
    marks.push({ x: heads.together.count, y: heads.together.accuracy, colour: COLOURS[0]!, text: `${heads.together.count} that can go together: ${heads.together.accuracy.toFixed(4)}` });
  return (
    <>
      <h3>Removing more and more</h3>
      <Chart label="accuracy against the number of heads removed" x="heads removed" y="right" rule={heads.baseline - heads.max_drop} marks={marks}
        lines={shown.map((curve) => ({ name: curve.order, points: curve.accuracy.map((y, x) => [x, y] as [number, number]) }))} />
    </>
  );
}

function Strata({ heads }: { heads: Heads }) {
  const names = heads.heads[0]?.by_stratum.map((each) => each.stratum) ?? [];
  if (!names.length) return null;
  return (
    <>
      <h3>Which problems a head is needed for</h3>
      <p>The share of each kind of problem that is wrong without the head.</p>
      <Grid label="errors by kind of problem without each head" rows={heads.heads.map((row) => shortHead(row.head))} columns={names} most={1}
        chosen={heads.heads.findIndex((row) => row.head === chosen.value)} choose={(row) => (chosen.value = heads.heads[row]!.head)}
        cells={(r, c) => {
          const { stratum, examples, errors } = heads.heads[r]!.by_stratum[c]!;
          return { value: errors / Math.max(1, examples), said: `without ${headTitle(heads.heads[r]!.head)}, ${stratum}: ${errors} of ${examples} wrong` };
        }} />
    </>
  );
}

function Pairs({ heads }: { heads: Heads }) {
  if (!heads.pairs.length) return null;
  const names = heads.heads.map((row) => row.head), strongest = heads.pairs.slice().sort((one, other) => other.backup - one.backup).slice(0, 8);
  const found = new Map(heads.pairs.flatMap((pair) => [[pair.heads.join("|"), pair], [pair.heads.slice().reverse().join("|"), pair]] as const));
  const most = Math.max(...heads.pairs.map((pair) => Math.abs(pair.backup)));
  return (
    <>
      <h3>Pairs that stand in for each other</h3>
      <p>What two heads cost together beyond the sum of both alone: blue where each stands in for the other, orange where they do the same work.</p>
      {names.length <= MOST_DRAWN && (
        <Grid label="pairs of heads" rows={names.map(shortHead)} columns={names.map(shortHead)} most={most}
          chosen={names.indexOf(chosen.value ?? "")} choose={(row) => (chosen.value = names[row]!)}
          cells={(r, c) => {
            const pair = found.get(`${names[r]}|${names[c]}`);
            return pair ? { value: pair.backup, said: `${headTitle(names[r]!)} and ${headTitle(names[c]!)}: ${pair.drop.toFixed(4)} together, ${pair.sum_of_drops.toFixed(4)} one by one` } : null;
          }} />
      )}
      <Table label="strongest pairs of heads">
        <thead><tr><th>heads</th><th>both gone cost</th><th>sum of each alone</th></tr></thead>
        <tbody>{strongest.map((pair) => (
          <tr key={pair.heads.join()}><td>{pair.heads.map(headTitle).join(" and ")}</td><td class="number">{pair.drop.toFixed(4)}</td><td class="number">{pair.sum_of_drops.toFixed(4)}</td></tr>
        ))}</tbody>
      </Table>
    </>
  );
}

export function HeadsSection() {
  const heads = content.heads;
  if (!heads) return <Missing what="heads" />;
  return (
    <>
      {heads.withheld.map((each) => <p class="withheld" key={each.check}>Nothing is concluded: {each.check}: {each.reason}.</p>)}
      <p>{heads.heads.length} heads, {heads.ablation} ablation, {heads.examples.toLocaleString("en")} problems, {heads.baseline.toFixed(4)} right with all of them. A head is called redundant when it costs less than {heads.max_drop} beyond doubt. A press on a head chooses it everywhere.</p>
      <Ranking rows={heads.heads} />
      <Curves heads={heads} />
      <Strata heads={heads} />
      <Pairs heads={heads} />
      <RolesPart />
      <PatternsPart />
      <SeedsPart />
    </>
  );
}
