// One head from its map to a causal test, in four steps: each step says more than the one before it, and how it is known.
import type { ComponentChildren } from "preact";
import { content, type Heads, type HeadRow, type SiteMaps } from "./content";
import { boundsOf, costOf, fixed } from "./cost";
import { Heat } from "./maps";
import { doing, headTitle, kindOf, numberOf, siteOf } from "./names";
import { titleOf } from "./roles";
import { chosen } from "./state";

const FEWEST = 50; // problems of a kind, below which a share says little

type Explained = NonNullable<Heads["roles"]>["explained"][number];
const percent = (share: number, digits = 0): string => `${(100 * share).toFixed(digits)}%`;
const shareOf = (share: unknown): number => (typeof share === "number" ? share : 0);

/** The sets that suffice, against all controls, and contain this head. */
function soundSets(heads: Heads, head: string): Explained[] {
  return heads.roles?.explained.filter((each) => each.sound && each.heads.includes(head)) ?? [];
}

function cellsOf(heads: Heads, head: string) {
  return (heads.roles?.table ?? []).filter((cell) => cell.part === head && !cell.at_answer).sort((one, other) => shareOf(other.flips) - shareOf(one.flips));
}

/** The head with the strongest causal evidence: in a set that suffices, and flipping most by itself; else the costliest. */
export function protagonist(heads: Heads): HeadRow | null {
  const strength = (row: HeadRow): number => (soundSets(heads, row.head).length ? 1 + shareOf(cellsOf(heads, row.head)[0]?.flips) : 0);
  const order = heads.heads.slice().sort((one, other) => strength(other) - strength(one) || (costOf(heads, other) ?? 0) - (costOf(heads, one) ?? 0));
  return order[0] ?? null;
}

function Looks({ row, map }: { row: HeadRow; map: SiteMaps | undefined }) {
  if (!map?.heads[numberOf(row.head)]) return <p>No average map was stored for it{row.pattern ? <>; its pattern is <b>{row.pattern}</b></> : ""}.</p>;
  const scores = row.pattern_scores;
  return (
    <>
      <Heat map={Float32Array.from(map.heads[numberOf(row.head)]!.flat())} queries={map.queries} keys={map.keys} size={190} large quiet label={`average attention of ${headTitle(row.head)}, in its story`} />
      <p>Rows are where it looks from, columns where it looks. {scores && scores.label !== "none clear" ? <>Its pattern is <b>{scores.label}</b>, in {percent(scores.stable)} of problems.</> : "No pattern is clear."} A map describes; it proves nothing yet.</p>
    </>
  );
}

function Bars({ rows }: { rows: [string, number, string][] }) {
  return (
    <dl class="bars">
      {rows.map(([name, share, title]) => <><dt>{name}</dt><dd title={title}><span class="bar"><i style={{ width: percent(Math.max(0, Math.min(1, share))) }} /></span>{percent(share, share > 0 && share < 0.1 ? 1 : 0)}</dd></>)}
    </dl>
  );
}

function Without({ heads, row }: { heads: Heads; row: HeadRow }) {
  const cost = costOf(heads, row), bounds = boundsOf(row), without = heads.recent ? "With it narrowed" : "Without it";
  const worst = row.by_stratum.filter((each) => each.examples >= FEWEST).sort((one, other) => other.errors / other.examples - one.errors / one.examples).slice(0, 3);
  const span = bounds ? ` (${bounds[0].toFixed(4)} to ${bounds[1].toFixed(4)})` : "";
  return (
    <>
      <p>{heads.counted ? <>{without} the {heads.counted} rises by <b>{fixed(cost)}</b>{span}</> : <>{without} <b>{percent(cost ?? 0, 1)}</b> of the answers are lost{span}</>}: {kindOf(heads)}, n = {heads.examples.toLocaleString("en")}, verdict <i>{row.verdict}</i>.</p>
      {worst.length > 0 && <><p>Errors, by kind of problem:</p><Bars rows={worst.map((each) => [each.stratum, each.errors / each.examples, `${each.errors} of ${each.examples} wrong`])} /></>}
    </>
  );
}

function Carries({ heads, row }: { heads: Heads; row: HeadRow }) {
  const cells = cellsOf(heads, row.head).filter((cell) => cell.named).slice(0, 3), [set] = soundSets(heads, row.head);
  if (!heads.roles) return <p>Not tested: this study has no pairs of problems that differ in one thing only, so nothing is known about what it carries.</p>;
  if (!cells.length && !set) return <p>Patching its output from one problem into another flips the answer in no pair more often than the controls do.</p>;
  return (
    <>
      <p>Two problems differ in one thing only. Its output is taken from one and patched into the other. The answer digit flips in:</p>
      <Bars rows={[
        ...cells.map((cell): [string, number, string] => [`${titleOf(cell.contrast)}, it alone`, shareOf(cell.flips), `of ${cell.pairs} pairs`]),
        ...(set ? [[`${titleOf(set.contrast)}, with ${set.heads.filter((head) => head !== row.head).map(headTitle).join(" and ")}`, shareOf(set.flips), `of ${set.pairs ?? "the"} pairs`] as [string, number, string]] : []),
        ...(set?.random_heads != null ? [[`control: random sets of ${set.heads.length}`, set.random_heads, "the mean over random sets of as many heads"] as [string, number, string]] : []),
        ...(set?.placebo != null ? [["control: placebo pairs", set.placebo, "pairs whose difference does not change the digit"] as [string, number, string]] : []),
      ]} />
    </>
  );
}

function Concludes({ heads, row }: { heads: Heads; row: HeadRow }) {
  const sets = soundSets(heads, row.head), name = headTitle(row.head), [first] = sets;
  const [need, no] = heads.recent ? ["needs to see more", "does not need to see more"] : ["is needed", "is not needed"];
  const needed = row.verdict === "critical" ? `${name} ${need} under ${kindOf(heads)}` : row.verdict === "redundant" ? `${name} ${no} by itself under ${kindOf(heads)}` : `Whether ${name} is needed by itself stays unclear`;
  if (!first) return <p><b>{needed}.</b> What it carries to the answer is not established: a map alone does not show it.</p>;
  const others = first.heads.filter((head) => head !== row.head).map(headTitle).join(" and ");
  return (
    <>
      <p><b>{needed}, and {others ? `with ${others} it carries` : "it carries"} to the answer: {sets.map((each) => titleOf(each.contrast)).join(", ")}.</b></p>
      <p>Not concluded: that no other head can do so, that another seed has the same head, or that this holds under every kind of ablation.</p>
    </>
  );
}

function Step({ number, title, children }: { number: number; title: string; children: ComponentChildren }) {
  return <li><h4><span>{number}</span> {title}</h4>{children}</li>;
}

export function StoryPart() {
  const heads = content.heads, row = heads && !heads.withheld.length ? protagonist(heads) : null;
  if (!heads || !row) return null;
  return (
    <>
      <h3>The story of one head: {headTitle(row.head)}</h3>
      <p>The head with the strongest {soundSets(heads, row.head).length ? "causal evidence" : `effect when it is ${doing(heads).done}`} in this study. <button onClick={() => (chosen.value = row.head)}>select it everywhere</button></p>
      <ol class="story">
        <Step number={1} title="What it looks at"><Looks row={row} map={content.maps?.find((site) => site.site === siteOf(row.head))} /></Step>
        <Step number={2} title={heads.recent ? "What happens when it sees less" : "What happens without it"}><Without heads={heads} row={row} /></Step>
        <Step number={3} title="What it carries"><Carries heads={heads} row={row} /></Step>
        <Step number={4} title="What may be concluded"><Concludes heads={heads} row={row} /></Step>
      </ol>
    </>
  );
}
