// What heads carry to the output, tested by activation patching on pairs of problems.
import { COLOURS } from "./chart";
import { content, type Roles, type Share } from "./content";
import { Grid } from "./grid";
import { Findings } from "./evidence";
import { headTitle, shortHead } from "./names";
import { pressed } from "./press";
import { Figure } from "./save";
import { chosen } from "./state";

const KINDS: Record<string, [string, string]> = {
  operand: [COLOURS[0]!, "digits of column"], carry: [COLOURS[1]!, "carry into column"], propagated: [COLOURS[2]!, "carry passed on to"],
  written: [COLOURS[3]!, "carry passed on by"],
};
const SWAPS: Record<string, string> = { source: " (source)", prefix: " (written)" };

/** A share as a number: 0 where it cannot be anything else, or was not measured. */
function numberOf(share: Share | undefined): number {
  return typeof share === "number" ? share : 0;
}

function spread(names: string[], x: number, high: number): Map<string, [number, number]> {
  return new Map(names.map((name, place) => [name, [x, ((place + 0.5) * high) / names.length]]));
}

export function titleOf(what: string): string {
  const [kind, column, swap] = what.split(" ");
  if (kind === "answer") return `answer digit ${column}`;
  return KINDS[kind!] ? `${KINDS[kind!]![1]} ${column}${SWAPS[swap ?? ""] ?? ""}` : shortHead(what);
}

/** From each difference, through the heads that carry it, to the answer digit; the width is the share of pairs flipped. */
function Drawing({ roles }: { roles: Roles }) {
  const shown = roles.explained.filter((each) => each.sound);
  if (!shown.length) return <p>No set of heads flips the answer in most pairs of problems.</p>;
  const heads = content.heads!.heads.map((row) => row.head).filter((head) => shown.some((each) => each.heads.includes(head)));
  const picked = heads.find((head) => head === chosen.value);
  const digits = [...new Set(shown.map((each) => each.contrast.split(" ")[1]!))].sort().reverse();
  const flips = (part: string, contrast: string): number =>
    numberOf(roles.table.find((cell) => cell.part === part && cell.contrast === contrast && !cell.at_answer)?.flips);
  const high = 40 * Math.max(shown.length, heads.length, digits.length), wide = 660;
  const places = new Map([
    ...spread(shown.map((each) => each.contrast), 85, high), ...spread(heads, wide / 2, high), ...spread(digits.map((each) => `answer ${each}`), wide - 75, high),
  ]);
  return (
    <Figure label="circuit: sets of heads that suffice">
      <svg style={{ minWidth: "30rem" }} viewBox={`0 0 ${wide} ${high}`} role="group" aria-label="from each difference, through the heads that carry it, to the answer digit">
        {shown.flatMap((each) => each.heads.map((head) => {
          const [kind, column] = each.contrast.split(" ");
          const path = [each.contrast, head, `answer ${column}`].map((name) => places.get(name)!);
          const share = flips(head, each.contrast);
          return (
            <polyline key={each.contrast + head} class={picked && picked !== head ? "flow faint" : "flow"} points={path.join(" ")}
              stroke={KINDS[kind!]?.[0] ?? "#808080"} stroke-width={1 + 6 * share}><title>{`${titleOf(each.contrast)}, ${shortHead(head)} patched alone flips ${(100 * share).toFixed(0)}% of pairs`}</title></polyline>
          );
        }))}
        {[...places].map(([name, [x, y]]) => {
          const share = shown.find((each) => each.contrast === name)?.flips, kind = KINDS[name.split(" ")[0]!];
          const isHead = !kind && !name.startsWith("answer");
          return (
            <g key={name} class={isHead ? "box pick" : "box"} {...(isHead && { ...pressed(() => (chosen.value = name)), "aria-label": `choose ${headTitle(name)}`, "aria-pressed": chosen.value === name })}>
              <rect x={x - 72} y={y - 15} width="144" height="30" rx="5" stroke={kind ? kind[0] : "#808080"} />
              <text x={x} y={y + (share == null ? 4 : -1)} text-anchor="middle">{titleOf(name)}</text>
              {share != null && <text x={x} y={y + 11} text-anchor="middle" class="small">{(100 * numberOf(share)).toFixed(0)}% explained</text>}
            </g>
          );
        })}
      </svg>
    </Figure>
  );
}

export function RolesPart() {
  const roles = content.heads?.roles;
  if (!roles) return null;
  const heads = content.heads!.heads.map((row) => row.head);
  const contrasts = [...new Set(roles.table.map((cell) => cell.contrast))];
  const cells = new Map(roles.table.filter((cell) => !cell.at_answer).map((cell) => [`${cell.part}|${cell.contrast}`, cell]));
  const crossed = [...cells.values()].some((cell) => cell.flips === "cannot");
  return (
    <>
      <h3>How carries reach the output</h3>
      <div class="beside">
        <Drawing roles={roles} />
        <div>
          <p>The problems of a pair differ in one thing (two digits, a carry made, a carry passed on). Activation patching puts the output of a head on one problem into the other, which tests causes. The drawing shows sets of heads that suffice, each with the share of pairs in which patching it flips the answer digit.</p>
          <Findings about="roles" title="What heads carry, each sentence with its controls" />
        </div>
      </div>
      <h4>Every head and every difference</h4>
      <div class="beside"><Grid label="what each head carries to the output" rows={heads.map(shortHead)} columns={contrasts.map(titleOf)} most={1}
        chosen={heads.indexOf(chosen.value ?? "")} choose={(row) => (chosen.value = heads[row]!)}
        cells={(r, c) => {
          const cell = cells.get(`${heads[r]}|${contrasts[c]}`);
          if (!cell) return null;
          const cannot = cell.flips === "cannot";
          const found = cannot ? "cannot flip any pair" : `flips ${(100 * numberOf(cell.flips)).toFixed(1)}% of ${cell.pairs} pairs`;
          return { value: numberOf(cell.flips), title: `${headTitle(heads[r]!)}, ${titleOf(contrasts[c]!)}: ${found}`, dot: cell.named, cannot };
        }} /><p>The share of pairs in which patching the head alone flips the answer. A dot: significantly above 2% in both directions.{crossed && " A cross: cannot, because all that it sees is the same in both problems, or nothing of it reaches the digit."}</p></div>
    </>
  );
}
