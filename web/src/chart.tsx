// A line chart as SVG: few lines, told apart by colour and dash, so that one over another lets it show.
import { Figure } from "./save";

export interface Line {
  name: string;
  points: [number, number][];
  band?: [number, number, number][]; // x, low, high
}

// Okabe and Ito's colours, which the colour-blind can tell apart
export const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8c8c8c"];
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];

export function Chart(props: {
  lines: Line[]; x: string; y: string; label: string; log?: boolean; shaded?: [number, number]; rule?: number; marks?: { x: number; y: number; text: string; colour: string }[];
}) {
  const wide = 640, high = 300, left = 52, right = 20, top = 12, bottom = 40;
  const all = props.lines.flatMap((line) => line.points.map(([x]) => x)).concat(props.shaded ?? []);
  const scaled = (x: number): number => (props.log ? Math.log2(Math.max(x, 1e-9)) : x);
  const [least, most] = [Math.min(...all.map(scaled)), Math.max(...all.map(scaled))];
  const px = (x: number): number => left + ((scaled(x) - least) / (most - least || 1)) * (wide - left - right);
  const py = (y: number): number => top + (1 - y) * (high - top - bottom);
  const ticks = [...new Set(props.lines.flatMap((line) => line.points.map(([x]) => x)))].sort((p, q) => p - q);
  const every = Math.ceil(ticks.length / 9);
  return (
    <Figure label={props.label}>
      <svg viewBox={`0 0 ${wide} ${high}`} role="img" aria-label={props.label}>
        {props.shaded && <rect x={px(props.shaded[0])} y={top} width={Math.max(2, px(props.shaded[1]) - px(props.shaded[0]))} height={high - top - bottom} class="shaded" />}
        {[0, 0.25, 0.5, 0.75, 1].map((y) => (
          <g key={y}><line x1={left} x2={wide - right} y1={py(y)} y2={py(y)} class="grid" /><text x={left - 8} y={py(y) + 4} text-anchor="end">{y}</text></g>
        ))}
        {ticks.filter((_, i) => i % every === 0).map((x) => <text key={x} x={px(x)} y={high - bottom + 18} text-anchor="middle">{x}</text>)}
        <text x={(left + wide - right) / 2} y={high - 4} text-anchor="middle">{props.x}</text>
        <text transform={`translate(13 ${(top + high - bottom) / 2}) rotate(-90)`} text-anchor="middle">{props.y}</text>
        {props.rule != null && <line x1={left} x2={wide - right} y1={py(props.rule)} y2={py(props.rule)} class="rule" />}
        {props.lines.map((line, i) => (
          <g key={line.name} style={{ color: COLOURS[i % COLOURS.length] }}>
            {line.band && <polygon class="band" points={[...line.band.map(([x, low]) => `${px(x)},${py(low)}`), ...line.band.slice().reverse().map(([x, , up]) => `${px(x)},${py(up)}`)].join(" ")} />}
            <polyline class="line" stroke-dasharray={DASHES[i % DASHES.length]} points={line.points.map(([x, y]) => `${px(x)},${py(y)}`).join(" ")} />
            {line.points.length < 12 && line.points.map(([x, y]) => <circle key={x} cx={px(x)} cy={py(y)} r="3"><title>{`${line.name} at ${x}: ${y.toFixed(4)}`}</title></circle>)}
          </g>
        ))}
        {props.marks?.map((mark) => (
          <g key={mark.text} style={{ color: mark.colour }}><circle cx={px(mark.x)} cy={py(mark.y)} r="6" class="mark" /><text x={px(mark.x) + (px(mark.x) > wide / 2 ? -10 : 10)} y={py(mark.y) + (mark.y < 0.15 ? -8 : 24)} text-anchor={px(mark.x) > wide / 2 ? "end" : "start"} class="said">{mark.text}</text></g>
        ))}
      </svg>
      <figcaption class="legend">
        {props.lines.map((line, i) => <span key={line.name}><i style={{ background: COLOURS[i % COLOURS.length] }} />{line.name}</span>)}
      </figcaption>
    </Figure>
  );
}
