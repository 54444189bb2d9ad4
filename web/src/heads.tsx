// Which heads it needs: each alone with its interval, and what happens when several are removed.
import { signal } from "@preact/signals";
import { Chart, COLOURS } from "./chart";
import { content, type Bounds, type HeadRow, type Heads } from "./content";
import { boundsOf, costOf, exact, fixed, marginOf } from "./cost";
import { Findings } from "./evidence";
import { Grid } from "./grid";
import { Missing } from "./missing";
import { doing, headTitle, kindOf, shortHead } from "./names";
import { PatternsPart } from "./patterns";
import { RolesPart } from "./roles";
import { Table, type Cells } from "./save";
import { SeedsPart } from "./seeds";
import { SeveralPart } from "./several";
import { chosen } from "./state";
import { StoryPart } from "./story";
import { UpstreamPart } from "./upstream";

type Column = "head" | "accuracy" | "cost" | "verdict" | "pattern";
const MOST_DRAWN = 64; // heads, above which the grid of pairs is not drawn
const FOLDED = 3; // heads without a measurable cost, from which they are one line
const opened = signal(false);
const order = signal<{ by: Column; down: boolean }>({ by: "cost", down: true });

function sorted(heads: Heads): HeadRow[] {
  const { by, down } = order.value;
  const copy = heads.heads.slice().sort((one, other) => {
    const [x, y] = [one, other].map((row) => (by === "cost" ? (costOf(heads, row) ?? 0) : (row[by] ?? "")));
    return typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
  });
  return down ? copy.reverse() : copy;
}

/** Whether no cost can be measured: the interval contains zero, and lies within the margin. */
function harmless(heads: Heads, row: HeadRow): boolean {
  const bounds = boundsOf(row);
  return bounds != null && bounds[0] <= 0 && bounds[1] >= 0 && bounds[1] < marginOf(heads);
}

function Row({ heads, row, most }: { heads: Heads; row: HeadRow; most: number }) {
  const cost = costOf(heads, row), bounds = boundsOf(row), share = (value: number): string => `${(100 * Math.max(value, 0)) / most}%`;
  return (
    <tr class={chosen.value === row.head ? "chosen" : ""} onClick={() => (chosen.value = row.head)}>
      <td title={row.head}><button class="plain" onClick={() => (chosen.value = row.head)}>{headTitle(row.head)}</button></td>
      {exact(heads) && <td class="number">{row.accuracy.toFixed(4)}</td>}
      <td>
        <span class="bar">
          <i style={{ width: share(cost ?? 0) }} />
          {bounds && <u style={{ left: share(bounds[0]), width: share(bounds[1] - Math.max(bounds[0], 0)) }} />}
        </span>
        <span class="number">{fixed(cost)}{bounds && <small> ({bounds[0].toFixed(4)} to {bounds[1].toFixed(4)})</small>}</span>
      </td>
      <td class={row.verdict}>{row.verdict}</td>
      <td>{row.pattern ?? "\u2013"}</td>
    </tr>
  );
}

/** The table of heads. Those without a measurable cost are one line, which opens. */
function Ranking({ heads }: { heads: Heads }) {
  const name = (by: Column, title: string) => (
    <th aria-sort={order.value.by === by ? (order.value.down ? "descending" : "ascending") : "none"}>
      <button onClick={() => (order.value = { by, down: order.value.by === by ? !order.value.down : by === "cost" })}>
        {title}{order.value.by === by ? (order.value.down ? " ▼" : " ▲") : ""}
      </button>
    </th>
  );
  const rows = sorted(heads), most = Math.max(...rows.map((row) => boundsOf(row)?.[1] ?? costOf(heads, row) ?? 0), 1e-6);
  const quiet = rows.filter((row) => harmless(heads, row)), folded = quiet.length >= FOLDED ? new Set(quiet) : new Set<HeadRow>();
  const without = heads.recent ? "accuracy with it narrowed" : "accuracy without it";
  const title = heads.counted ? `more ${heads.counted}, with interval` : "cost, with interval";
  const csv = (): Cells[] => [
    ["head", without, heads.counted ? `more ${heads.counted}` : "cost", "low", "high", "verdict", "pattern"],
    ...rows.map((row) => [row.head, row.accuracy, costOf(heads, row), ...(boundsOf(row) ?? ["", ""]), row.verdict, row.pattern]),
  ];
  const least = Math.min(...quiet.map((row) => boundsOf(row)![0])), largest = Math.max(...quiet.map((row) => boundsOf(row)![1]));
  return (
    <Table label="ranking of heads" id="ranking" csv={csv}>
      <thead><tr>{name("head", "head")}{exact(heads) && name("accuracy", without)}{name("cost", title)}{name("verdict", "verdict")}{name("pattern", "pattern")}</tr></thead>
      <tbody>{rows.filter((row) => !folded.has(row)).map((row) => <Row key={row.head} heads={heads} row={row} most={most} />)}</tbody>
      {folded.size > 0 && (
        <tbody class="quiet">
          <tr class="fold"><td colSpan={exact(heads) ? 5 : 4}>
            <button aria-expanded={opened.value} onClick={() => (opened.value = !opened.value)}>{opened.value ? "▾" : "▸"} {folded.size} heads: no measurable cost alone <small>(every interval within {least.toFixed(4)} to {largest.toFixed(4)})</small></button>
          </td></tr>
          {opened.value && rows.filter((row) => folded.has(row)).map((row) => <Row key={row.head} heads={heads} row={row} most={most} />)}
        </tbody>
      )}
    </Table>
  );
}

/** Accuracy against heads removed; in a study that judges by a loss, the loss. */
function Curves({ heads }: { heads: Heads }) {
  const shown = heads.curves.filter((curve) => !curve.order.startsWith("random") || curve.order === "random 0");
  const whole = heads.counted ? shown[0]?.loss?.[0] : undefined, byLoss = whole != null;
  const left = (removed: { accuracy: number; loss_increase?: number | null }): number | null =>
    !byLoss ? removed.accuracy : removed.loss_increase == null ? null : whole + removed.loss_increase;
  const marks = [], words = doing(heads);
  const [alone, together] = [heads.alone_removed_together, heads.together].map((each) => each && left(each));
  if (heads.alone && alone != null)
    marks.push({ x: heads.alone.count, y: alone, colour: COLOURS[1]!, text: `all ${heads.alone.count} that are cheap alone: ${alone.toFixed(byLoss ? 4 : 3)}` });
  if (heads.together && together != null)
    marks.push({ x: heads.together.count, y: together, colour: COLOURS[0]!, text: `${heads.together.count} that ${words.can} together: ${together.toFixed(4)}` });
  const lines = shown.map((curve) => ({
    name: curve.order.replace("by slope", "by gradient"), // files keep the older name
    points: (byLoss ? (curve.loss ?? []) : curve.accuracy).flatMap((y, place): [number, number][] => (y == null ? [] : [[curve.heads[place]!.length, y]])),
  }));
  const counts = [...new Set(shown.flatMap((curve) => curve.examples ?? []))].map((count) => count.toLocaleString("en"));
  const measured = counts.length === 2 ? ` (n = ${counts[0]} problems for the first, ${counts[1]} for the others)` : counts.length === 1 ? ` (n = ${counts[0]} problems)` : "";
  const rule = byLoss ? whole + marginOf(heads) : heads.counted ? undefined : heads.baseline - heads.max_drop;
  return (
    <>
      <h3>{words.narrowing} heads one after another</h3>
      {byLoss && <p>Lower is better. The dashed line is {marginOf(heads)} above the {heads.counted} with all heads, {fixed(whole)}.</p>}
      <div class="beside"><Chart label={`${byLoss ? heads.counted : "accuracy"} against the number of heads ${words.done}`} x={`heads ${words.done}`} y={byLoss ? heads.counted! : "accuracy"} loose={byLoss} rule={rule} marks={marks} lines={lines} />
      <div>
        <p>In each curve heads are {words.done} in another order{measured}. The dashed line is the margin: {byLoss ? "above it, the loss has risen too far" : `above it, ${words.narrow} costs less than the margin`}. The rings are two sets: the heads that are cheap one at a time, all {words.done} at once, and the largest set {heads.together?.optimal ? "" : "found "}that {words.can} together.</p>
        <Findings about="heads" title="The same in sentences, each with its evidence" />
      </div></div>
    </>
  );
}

/** The largest set under each kind of ablation, and what the same heads cost with the outputs of other problems. */
function Sets({ heads }: { heads: Heads }) {
  if (!heads.sets?.length || heads.counted) return null;
  const span = (found: { accuracy: number; interval?: Bounds | null } | null): string => {
    const [low, high] = found?.interval ?? [null, null];
    return found ? `${found.accuracy.toFixed(4)}${low == null || high == null ? "" : ` (${low.toFixed(4)} to ${high.toFixed(4)})`}` : "\u2013";
  };
  return (
    <>
      <h3>{heads.recent ? "What can be narrowed together depends on the window" : "What can go together depends on the kind of ablation"}</h3>
      <p>The largest set found within {heads.max_drop}, with the accuracy it leaves{heads.recent ? "" : "; and the accuracy when the outputs of the same heads come from another problem instead"}.</p>
      <Table label="sets of heads under each kind of ablation" id="sets">
        <thead><tr><th>ablation</th><th>heads that {doing(heads).can} together</th><th>accuracy left</th>{!heads.recent && <th>the same heads under resample ablation</th>}</tr></thead>
        <tbody>{heads.sets.map((each) => (
          <tr key={each.ablation}><td>{each.ablation}</td><td class="number" title={each.heads.map(headTitle).join(", ")}>{each.count}{each.optimal ? " (no larger set can)" : ""}</td><td class="number">{span(each)}</td>{!heads.recent && <td class="number">{span(each.resample)}</td>}</tr>
        ))}</tbody>
      </Table>
    </>
  );
}

function Strata({ heads }: { heads: Heads }) {
  const names = heads.heads[0]?.by_stratum.map((each) => each.stratum) ?? [];
  if (!names.length) return null;
  return (
    <>
      <h3>Which problems a head is needed for</h3>
      <div class="beside"><Grid label="errors by kind of problem without each head" rows={heads.heads.map((row) => shortHead(row.head))} columns={names} most={1}
        chosen={heads.heads.findIndex((row) => row.head === chosen.value)} choose={(row) => (chosen.value = heads.heads[row]!.head)}
        cells={(r, c) => {
          const { stratum, examples, errors } = heads.heads[r]!.by_stratum[c]!;
          return { value: errors / Math.max(1, examples), title: `without ${headTitle(heads.heads[r]!.head)}, ${stratum}: ${errors} of ${examples} wrong` };
        }} /><p>The error rate on each kind of problem without the head: the stronger the blue, the more of them go wrong. A row that is blue in only a few columns belongs to a head with a special job.</p></div>
    </>
  );
}

function Pairs({ heads }: { heads: Heads }) {
  if (!heads.pairs.length) return null;
  const names = [...new Set(heads.heads.map((row) => row.group ?? row.head))], strongest = heads.pairs.slice().sort((one, other) => other.backup - one.backup).slice(0, 8);
  const found = new Map(heads.pairs.flatMap((pair) => [[pair.heads.join("|"), pair], [pair.heads.slice().reverse().join("|"), pair]] as const));
  const most = Math.max(...heads.pairs.map((pair) => Math.abs(pair.backup)));
  return (
    <>
      <h3>Pairs that back each other up</h3>
      <div class="beside">
      {names.length <= MOST_DRAWN && (
        <Grid label="pairs of heads" rows={names.map(shortHead)} columns={names.map(shortHead)} most={most}
          chosen={names.indexOf(chosen.value ?? "")} choose={(row) => (chosen.value = names[row]!)}
          cells={(r, c) => {
            const pair = found.get(`${names[r]}|${names[c]}`);
            return pair ? { value: pair.backup, title: `${headTitle(names[r]!)} and ${headTitle(names[c]!)}: ${pair.drop.toFixed(4)} together, ${pair.sum_of_drops.toFixed(4)} one by one` } : null;
          }} />
      )}
      <div><p>The cost of {doing(heads).narrowing.toLowerCase()} two heads together minus the sum of their costs alone: blue where each is a backup of the other, orange where both are needed for the same answers. Measured on {heads.pairs_examples ? `${heads.pairs_examples.toLocaleString("en")} problems` : "a smaller sample of problems"}: small differences mean little.</p>
      <Table label="strongest pairs of heads">
        <thead><tr><th>heads</th><th>cost together</th><th>sum of costs alone</th></tr></thead>
        <tbody>{strongest.map((pair) => (
          <tr key={pair.heads.join()}><td>{pair.heads.map(headTitle).join(" and ")}</td><td class="number">{pair.drop.toFixed(4)}</td><td class="number">{pair.sum_of_drops.toFixed(4)}</td></tr>
        ))}</tbody>
      </Table></div></div>
    </>
  );
}

function About({ heads }: { heads: Heads }) {
  const [shown, ...others] = content.studies;
  const right = exact(heads) ? `, accuracy ${heads.baseline.toFixed(4)} with all of them` : "";
  const what = heads.recent ? "narrowing it" : "its removal";
  const rule = heads.counted ? `${what} raises the ${heads.counted} by less than ${marginOf(heads)}` : `${what} costs less than ${heads.max_drop}`;
  return (
    <>
      <p class="studied">Studied: <b>{shown ?? heads.subject}</b> ({heads.subject}).{others.length > 0 && ` ${others.length} more ${others.length === 1 ? "study in the folders is" : "studies in the folders are"} not shown: ${others.slice(0, 5).join(", ")}${others.length > 5 ? "\u2026" : ""}.`}</p>
      <p>{heads.heads.length} heads{heads.units === "groups" && ", those of a key-value group together"}, {kindOf(heads)}, {heads.examples.toLocaleString("en")} problems{right}. A head is redundant when {rule}, by the whole interval. Click a head to select it everywhere.</p>
    </>
  );
}

export function HeadsSection() {
  const heads = content.heads;
  if (!heads) return content.seeds.length ? <SeedsPart /> : <Missing what="heads" />;
  return (
    <>
      {heads.withheld.map((each) => <p class="withheld" key={each.check}>Withheld: {each.check}: {each.reason.replace(/\.$/, "")}.</p>)}
      <About heads={heads} />
      <Curves heads={heads} />
      <h3>What each head costs alone</h3>
      <Ranking heads={heads} />
      <StoryPart />
      <Sets heads={heads} />
      <Strata heads={heads} />
      <Pairs heads={heads} />
      <RolesPart />
      <UpstreamPart />
      <PatternsPart />
      <SeveralPart />
      <SeedsPart />
    </>
  );
}
