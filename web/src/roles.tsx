// What heads bring to the answer, as tests with patched pairs of problems showed it.
import { COLOURS } from "./chart";
import { content, type Roles } from "./content";
import { Grid } from "./grid";
import { headTitle, shortHead } from "./names";
import { pressed } from "./press";
import { Figure } from "./save";
import { chosen } from "./state";

const KINDS: Record<string, [string, string]> = {
  operand: [COLOURS[0]!, "digits of column"], carry: [COLOURS[1]!, "carry into column"], propagated: [COLOURS[2]!, "carry passed on to"],
};

function spread(names: string[], x: number, high: number): Map<string, [number, number]> {
  return new Map(names.map((name, place) => [name, [x, ((place + 0.5) * high) / names.length]]));
}

function named(what: string): string {
  const [kind, column] = what.split(" ");
  if (kind === "answer") return `answer digit ${column}`;
  return KINDS[kind!] ? `${KINDS[kind!]![1]} ${column}` : shortHead(what);
}

/** From what differs, through the heads that bring it, to the answer digit; the width is the share of pairs turned. */
function Drawing({ roles }: { roles: Roles }) {
  const told = roles.explained.filter((each) => each.sound);
  if (!told.length) return <p>No set of heads turns most pairs of problems.</p>;
  const heads = content.heads!.heads.map((row) => row.head).filter((head) => told.some((each) => each.heads.includes(head)));
  const picked = heads.find((head) => head === chosen.value);
  const digits = [...new Set(told.map((each) => each.contrast.split(" ")[1]!))].sort().reverse();
  const flips = (part: string, contrast: string): number =>
    roles.table.find((cell) => cell.part === part && cell.contrast === contrast && !cell.at_answer)?.flips ?? 0;
  const high = 40 * Math.max(told.length, heads.length, digits.length), wide = 660;
  const places = new Map([
    ...spread(told.map((each) => each.contrast), 85, high), ...spread(heads, wide / 2, high), ...spread(digits.map((each) => `answer ${each}`), wide - 75, high),
  ]);
  return (
    <Figure label="carry drawing: heads that are enough">
      <svg class="curves" viewBox={`0 0 ${wide} ${high}`} role="group" aria-label="from what differs, through the heads that bring it, to the digit of the answer">
        {told.flatMap((each) => each.heads.map((head) => {
          const [kind, column] = each.contrast.split(" ");
          const path = [each.contrast, head, `answer ${column}`].map((name) => places.get(name)!);
          const share = flips(head, each.contrast);
          return (
            <polyline key={each.contrast + head} class={picked && picked !== head ? "flow faint" : "flow"} points={path.join(" ")}
              stroke={KINDS[kind!]?.[0] ?? "#808080"} stroke-width={1 + 6 * share}><title>{`${named(each.contrast)}, ${shortHead(head)} alone turns ${(100 * share).toFixed(0)}%`}</title></polyline>
          );
        }))}
        {[...places].map(([name, [x, y]]) => {
          const share = told.find((each) => each.contrast === name)?.flips, kind = KINDS[name.split(" ")[0]!];
          const isHead = !kind && !name.startsWith("answer");
          return (
            <g key={name} class={isHead ? "box pick" : "box"} {...(isHead && { ...pressed(() => (chosen.value = name)), "aria-label": `choose ${headTitle(name)}`, "aria-pressed": chosen.value === name })}>
              <rect x={x - 72} y={y - 15} width="144" height="30" rx="5" stroke={kind ? kind[0] : "#808080"} />
              <text x={x} y={y + (share == null ? 4 : -1)} text-anchor="middle">{named(name)}</text>
              {share != null && <text x={x} y={y + 11} text-anchor="middle" class="small">{(100 * share).toFixed(0)}% explained</text>}
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
  return (
    <>
      <h3>How carries are brought to the answer</h3>
      <p>Pairs of problems that differ in one thing (two digits, a carry made, a carry passed on). What a head says of one is put into the other; drawn are the heads that together turn its answer digit, which is a test of cause. On average they turn {(100 * (roles.mean_explained ?? 0)).toFixed(0)}%.</p>
      <Drawing roles={roles} />
      <h4>Every head, every difference: the share of pairs that it turns alone (dot: more than 2% in both directions, beyond doubt)</h4>
      <Grid label="what each head brings to the answer" rows={heads.map(shortHead)} columns={contrasts} most={1}
        chosen={heads.indexOf(chosen.value ?? "")} choose={(row) => (chosen.value = heads[row]!)}
        cells={(r, c) => {
          const cell = cells.get(`${heads[r]}|${contrasts[c]}`);
          return cell ? { value: cell.flips ?? 0, said: `${shortHead(heads[r]!)}, ${contrasts[c]}: turns ${(100 * (cell.flips ?? 0)).toFixed(1)}% of ${cell.pairs}`, dot: cell.named } : null;
        }} />
    </>
  );
}
