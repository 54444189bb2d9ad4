// Which heads it needs: each alone with its interval, and what happens when several go.
import { signal } from "@preact/signals";
import { Chart, COLOURS } from "./chart";
import { content, type HeadRow } from "./content";
import { chosen } from "./state";
import { siteTitle } from "./try";

type Column = "head" | "accuracy" | "drop" | "verdict" | "pattern";
const order = signal<{ by: Column; down: boolean }>({ by: "drop", down: true });

function sorted(rows: HeadRow[]): HeadRow[] {
  const { by, down } = order.value;
  const copy = rows.slice().sort((one, other) => {
    const [x, y] = [one[by] ?? "", other[by] ?? ""];
    return typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
  });
  return down ? copy.reverse() : copy;
}

export function headTitle(head: string): string {
  const at = head.lastIndexOf(".");
  return `${siteTitle(head.slice(0, at))} H${head.slice(at + 1)}`;
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
    <div class="scroll" tabIndex={0} role="region" aria-label="ranking of heads">
      <table id="ranking">
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
                <span class="number">{row.drop.toFixed(4)}</span>
              </td>
              <td class={row.verdict}>{row.verdict}</td>
              <td>{row.pattern ?? "–"}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function HeadsSection() {
  const heads = content.heads;
  if (!heads) return <Missing what="heads" />;
  const shown = heads.curves.filter((curve) => !curve.order.startsWith("random") || curve.order === "random 0");
  const marks = [];
  if (heads.alone && heads.alone_removed_together)
    marks.push({ x: heads.alone.count, y: heads.alone_removed_together.accuracy, colour: COLOURS[1]!, text: `all ${heads.alone.count} that are cheap alone: ${heads.alone_removed_together.accuracy.toFixed(3)}` });
  if (heads.together)
    marks.push({ x: heads.together.count, y: heads.together.accuracy, colour: COLOURS[0]!, text: `${heads.together.count} that can go together: ${heads.together.accuracy.toFixed(4)}` });
  const pairs = heads.pairs.slice().sort((one, other) => other.backup - one.backup).slice(0, 8);
  return (
    <>
      {heads.withheld.map((each) => <p class="withheld" key={each.check}>Nothing is concluded: {each.check}: {each.reason}.</p>)}
      <p>{heads.heads.length} heads, {heads.ablation} ablation, {heads.examples.toLocaleString("en")} problems, {heads.baseline.toFixed(4)} right with all of them. A head is called redundant when it costs less than {heads.max_drop} beyond doubt.</p>
      <Ranking rows={heads.heads} />
      <h3>Removing more and more</h3>
      <Chart label="accuracy against the number of heads removed" x="heads removed" y="right" rule={heads.baseline - heads.max_drop} marks={marks}
        lines={shown.map((curve) => ({ name: curve.order, points: curve.accuracy.map((y, x) => [x, y] as [number, number]) }))} />
      {pairs.length > 0 && (
        <>
          <h3>Pairs that stand in for each other</h3>
          <div class="scroll" tabIndex={0} role="region" aria-label="pairs of heads">
            <table>
              <thead><tr><th>heads</th><th>both gone cost</th><th>sum of each alone</th></tr></thead>
              <tbody>{pairs.map((pair) => (
                <tr key={pair.heads.join()}><td>{pair.heads.map(headTitle).join(" and ")}</td><td class="number">{pair.drop.toFixed(4)}</td><td class="number">{pair.sum_of_drops.toFixed(4)}</td></tr>
              ))}</tbody>
            </table>
          </div>
        </>
      )}
    </>
  );
}

export function Missing({ what }: { what: string }) {
  const found = content.missing.filter((each) => each.what === what);
  return <div class="missing">{found.length ? found.map((each) => <p key={each.command}>Not in this page: {each.what}. <code>{each.command}</code> makes it.</p>) : <p>Nothing here.</p>}</div>;
}
