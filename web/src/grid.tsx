// A table of numbers as colours: blue for positive numbers, orange for negative ones.
import { pressed } from "./press";
import { Figure, type Cells } from "./save";

export interface Cell {
  value: number;
  title: string;
  dot?: boolean;
  cannot?: boolean; // crossed out: there is no number
}

const BLUE = "#0072B2", ORANGE = "#D55E00", CELL = 15, GAP = 1;

function written(cell: Cell | null): number | string | undefined {
  return cell?.cannot ? "cannot" : cell?.value;
}

export function Grid(props: {
  label: string; rows: string[]; columns: string[]; cells: (row: number, column: number) => Cell | null; most: number;
  chosen?: number; choose?: (row: number) => void;
}) {
  const left = 8 + 6.3 * Math.max(...props.rows.map((each) => each.length));
  const top = 8 + 5.3 * Math.max(...props.columns.map((each) => each.length));
  const wide = left + props.columns.length * CELL + top * 0.6 + 8, high = top + props.rows.length * CELL + 4;
  const values = (): Cells[] => [["", ...props.columns], ...props.rows.map((name, r) => [name, ...props.columns.map((_, c) => written(props.cells(r, c)))])];
  return (
    <Figure label={props.label} class="grid-figure" csv={values}>
      <svg viewBox={`0 0 ${wide} ${high}`} style={{ maxWidth: `${wide * 1.35}px`, minWidth: `${wide * 0.9}px` }} role="group" aria-label={props.label}>
        {props.columns.map((name, c) => (
          <text key={c} class="tick" transform={`translate(${left + (c + 0.7) * CELL} ${top - 4}) rotate(-58)`}>{name}</text>
        ))}
        {props.rows.map((name, r) => (
          <g key={r} class={props.chosen === r ? "row chosen" : "row"} {...(props.choose && { ...pressed(() => props.choose!(r)), "aria-label": `choose ${name}`, "aria-pressed": props.chosen === r })}>
            <text class="tick" x={left - 5} y={top + (r + 0.75) * CELL} text-anchor="end">{name}</text>
            {props.columns.map((_, c) => {
              const cell = props.cells(r, c);
              if (!cell) return null;
              const share = Math.min(1, Math.abs(cell.value) / (props.most || 1));
              const [x, y] = [left + c * CELL, top + r * CELL];
              return (
                <g key={c}>
                  <rect class="empty" x={x} y={y} width={CELL - GAP} height={CELL - GAP} />
                  <rect x={x} y={y} width={CELL - GAP} height={CELL - GAP} fill={cell.value < 0 ? ORANGE : BLUE} fill-opacity={share}><title>{cell.title}</title></rect>
                  {cell.cannot && <path class="cannot" d={`M${x + 4} ${y + 4}l6 6m0 -6l-6 6`} stroke="#808080" fill="none" />}
                  {cell.dot && <circle cx={x + (CELL - GAP) / 2} cy={y + (CELL - GAP) / 2} r="3" fill={ORANGE} />}
                </g>
              );
            })}
          </g>
        ))}
      </svg>
    </Figure>
  );
}
