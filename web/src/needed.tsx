// Every head as a dot, a row for each site: needed, removable together, or removable only by itself.
import { content, type Heads } from "./content";
import { doing, headTitle, numberOf, siteOf, siteTitle } from "./names";
import { pressed } from "./press";
import { Figure } from "./save";
import { chosen } from "./state";

export type Fate = "needed" | "trap" | "free";
const DOT = 26, LEFT = 132;

/** What a study says of each head: in the set that can go, cheap only by itself, or needed even by itself. */
export function fatesOf(heads: Heads): Map<string, Fate> | null {
  if (!heads.together || !heads.alone) return null;
  const free = new Set(heads.together.heads), cheap = new Set(heads.alone.heads);
  return new Map(heads.heads.map(({ head }) => [head, free.has(head) ? "free" : cheap.has(head) ? "trap" : "needed"]));
}

const MEANING: [Fate, (count: number, set: string) => string][] = [
  ["needed", (count) => `${count} needed: ${count === 1 ? "costs" : "each costs"} accuracy alone`],
  ["trap", (count) => `${count} ${count === 1 ? "looks" : "look"} removable alone, but ${count === 1 ? "is" : "are"} not in the set that can go`],
  ["free", (count, set) => `${count} can go together (${set})`],
];

const MEANING_OF_WINDOWS: typeof MEANING = [
  ["needed", (count) => `${count} must see more: ${count === 1 ? "costs" : "each costs"} accuracy alone`],
  ["trap", (count) => `${count} ${count === 1 ? "seems" : "seem"} to need no more alone, but must see everything`],
  ["free", (count, set) => `${count} can be narrowed together (${set})`],
];

function Shape({ fate, x, y }: { fate: Fate; x: number; y: number }) {
  if (fate === "needed") return <circle class="needed" cx={x} cy={y} r="9" />;
  if (fate === "trap") return <path class="trap" d={`M${x} ${y - 10}L${x + 10} ${y}L${x} ${y + 10}L${x - 10} ${y}Z`} />;
  return <circle class="free" cx={x} cy={y} r="8" />;
}

/** Shapes as well as colours differ, for readers who cannot distinguish the colours. */
export function Needed({ heads }: { heads: Heads }) {
  const fates = fatesOf(heads);
  if (!fates) return null;
  const sites = [...new Set(heads.heads.map((row) => siteOf(row.head)))], across = Math.max(...heads.heads.map((row) => numberOf(row.head))) + 1;
  if (sites.length * across > 400) return null; // of a large model the table says more
  const wide = Math.max(LEFT + across * DOT + 6, heads.recent ? 420 : 330), top = sites.length * DOT + 14, label = heads.recent ? "which heads need the whole context" : "which heads are needed";
  const words = doing(heads), meaning = heads.recent ? MEANING_OF_WINDOWS : MEANING;
  const counts = (fate: Fate): number => [...fates.values()].filter((each) => each === fate).length;
  return (
    <Figure label={label} class="needed-figure">
      <svg viewBox={`0 0 ${wide} ${top + meaning.length * 24 + 2}`} style={{ maxWidth: `${wide * 1.25}px` }} role="group" aria-label={label}>
        {sites.map((site, row) => <text key={site} x={LEFT - 12} y={(row + 0.5) * DOT + 8} text-anchor="end">{siteTitle(site).slice(-20)}</text>)}
        {heads.heads.map(({ head }) => {
          const fate = fates.get(head)!, x = LEFT + (numberOf(head) + 0.5) * DOT, y = (sites.indexOf(siteOf(head)) + 0.5) * DOT + 4;
          return (
            <g key={head} class={chosen.value === head ? "dot-head pick chosen" : "dot-head pick"} {...pressed(() => (chosen.value = head))} aria-label={`${headTitle(head)}: ${fate === "free" ? words.can : fate === "trap" ? `${words.can} alone only` : heads.recent ? "must see more" : "needed"}`} aria-pressed={chosen.value === head}>
              <rect class="under-dot" x={x - DOT / 2} y={y - DOT / 2} width={DOT} height={DOT} />
              <Shape fate={fate} x={x} y={y} /><title>{headTitle(head)}</title>
            </g>
          );
        })}
        {meaning.map(([fate, words], row) => (
          <g key={fate}><Shape fate={fate} x={LEFT - 112} y={top + (row + 0.5) * 24} /><text x={LEFT - 96} y={top + (row + 0.5) * 24 + 4}>{words(counts(fate), heads.together!.optimal ? "no larger set can" : "the largest set found")}</text></g>
        ))}
      </svg>
    </Figure>
  );
}

export function NeededPart() {
  return content.heads ? <Needed heads={content.heads} /> : null;
}
