// A line chart as SVG: few lines, distinguished by colour and dash, so that overlapping lines stay visible.
import { Figure } from "./save";

export interface Line {
  name: string;
  points: [number, number][];
  band?: [number, number, number][]; // x, low, high
}

// Okabe and Ito's colours, which colour-blind readers can distinguish
export const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8c8c8c"];
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];
const MOST_VALUES = 28; // on the x axis, above which its ticks are round numbers
const ROW = 18, SAMPLE = 26; // of a legend, in the units of the drawing

interface Sample {
  name: string;
  colour: string;
  dash?: string; // of a line; bars have none
}

/** Places the names of a legend side by side, on as many rows as are needed. */
function placeNames(names: string[], wide: number): [number, number][] {
  let x = 0, row = 0;
  return names.map((name) => {
    const own = SAMPLE + 24 + 6.6 * name.length;
    if (x > 0 && x + own > wide) [x, row] = [0, row + 1];
    x += own;
    return [x - own, row * ROW];
  });
}

export function legendHeight(names: string[], wide: number): number {
  return ROW + Math.max(0, ...placeNames(names, wide).map(([, y]) => y));
}

/** The legend, inside the drawing so that it is saved with it. */
export function Legend({ samples, left, top, wide }: { samples: Sample[]; left: number; top: number; wide: number }) {
  const places = placeNames(samples.map((each) => each.name), wide);
  return (
    <g class="legend">
      {samples.map(({ name, colour, dash }, i) => {
        const [x, y] = [left + places[i]![0], top + places[i]![1]];
        return (
          <g key={name} style={{ color: colour }}>
            {dash == null ? <rect x={x} y={y - 9} width={SAMPLE} height="10" fill={colour} /> : <line class="line" x1={x} x2={x + SAMPLE} y1={y - 4} y2={y - 4} stroke-dasharray={dash} />}
            <text x={x + SAMPLE + 6} y={y}>{name}</text>
          </g>
        );
      })}
    </g>
  );
}

/** Round numbers from below the smallest to above the largest value. */
export function ticksOver(least: number, most: number): number[] {
  const rough = (most - least || Math.abs(most) || 1) / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough)!;
  const [from, to] = [Math.floor(least / step), Math.ceil(most / step)];
  return Array.from({ length: Math.max(2, to - from + 1) }, (_, place) => Number(((from + place) * step).toPrecision(6)));
}

export function Chart(props: {
  lines: Line[]; x: string; y: string; label: string; log?: boolean; shaded?: [number, number]; rule?: number; marks?: { x: number; y: number; text: string; colour: string }[];
  loose?: boolean; // the y axis follows the data; otherwise it is a share, from 0 to 1
}) {
  const wide = 640, plot = 300, left = 58, right = 20, top = 12, bottom = 40, names = props.lines.map((line) => line.name);
  const high = plot + 8 + legendHeight(names, wide - left - right);
  const all = props.lines.flatMap((line) => line.points.map(([x]) => x)).concat(props.shaded ?? []);
  const scaled = (x: number): number => (props.log ? Math.log2(Math.max(x, 1e-9)) : x);
  const [least, most] = [Math.min(...all.map(scaled)), Math.max(...all.map(scaled))];
  const heights = [...props.lines.flatMap((line) => line.points.map(([, y]) => y)), ...(props.marks ?? []).map((mark) => mark.y), ...(props.rule == null ? [] : [props.rule])];
  const levels = props.loose ? ticksOver(Math.min(...heights), Math.max(...heights)) : [0, 0.25, 0.5, 0.75, 1];
  const [low, up] = [levels[0]!, levels.at(-1)!];
  const px = (x: number): number => left + ((scaled(x) - least) / (most - least || 1)) * (wide - left - right);
  const py = (y: number): number => top + ((up - y) / (up - low)) * (plot - top - bottom);
  const values = [...new Set(props.lines.flatMap((line) => line.points.map(([x]) => x)))].sort((p, q) => p - q);
  const round = values.length > MOST_VALUES && !props.log; // more values than anyone asks for by name, such as steps
  const ticks = round ? ticksOver(least, most).filter((x) => x >= least && x <= most) : values;
  const every = Math.ceil(ticks.length / 9);
  return (
    <Figure label={props.label}>
      <svg class="curves" viewBox={`0 0 ${wide} ${high}`} role="img" aria-label={props.label}>
        {props.shaded && <rect x={px(props.shaded[0])} y={top} width={Math.max(2, px(props.shaded[1]) - px(props.shaded[0]))} height={plot - top - bottom} class="shaded" />}
        {levels.map((y) => (
          <g key={y}><line x1={left} x2={wide - right} y1={py(y)} y2={py(y)} class="grid" /><text x={left - 8} y={py(y) + 4} text-anchor="end">{y}</text></g>
        ))}
        {ticks.filter((_, i) => i % every === 0).map((x) => <text key={x} x={px(x)} y={plot - bottom + 18} text-anchor="middle">{round ? x.toLocaleString("en") : x}</text>)}
        <text x={(left + wide - right) / 2} y={plot - 4} text-anchor="middle">{props.x}</text>
        <text transform={`translate(13 ${(top + plot - bottom) / 2}) rotate(-90)`} text-anchor="middle">{props.y}</text>
        {props.rule != null && <line x1={left} x2={wide - right} y1={py(props.rule)} y2={py(props.rule)} class="rule" />}
        {props.lines.map((line, i) => (
          <g key={line.name} style={{ color: COLOURS[i % COLOURS.length] }}>
            {line.band && <polygon class="band" points={[...line.band.map(([x, low]) => `${px(x)},${py(low)}`), ...line.band.slice().reverse().map(([x, , up]) => `${px(x)},${py(up)}`)].join(" ")} />}
            <polyline class="line" stroke-dasharray={DASHES[i % DASHES.length]} points={line.points.map(([x, y]) => `${px(x)},${py(y)}`).join(" ")} />
            {line.points.length < 12 && line.points.map(([x, y]) => <circle key={x} cx={px(x)} cy={py(y)} r="3"><title>{`${line.name} at ${x}: ${y.toFixed(4)}`}</title></circle>)}
          </g>
        ))}
        {props.marks?.map((mark) => (
          <g key={mark.text} style={{ color: mark.colour }}><circle cx={px(mark.x)} cy={py(mark.y)} r="6" class="mark" /><text x={px(mark.x) + (px(mark.x) > wide / 2 ? -10 : 10)} y={py(mark.y) + (py(mark.y) > plot - bottom - 40 ? -8 : 24)} text-anchor={px(mark.x) > wide / 2 ? "end" : "start"} class="said">{mark.text}</text></g>
        ))}
        <Legend samples={names.map((name, i) => ({ name, colour: COLOURS[i % COLOURS.length]!, dash: DASHES[i % DASHES.length]! }))} left={left} top={plot + 16} wide={wide - left - right} />
      </svg>
    </Figure>
  );
}
