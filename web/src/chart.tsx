// A line chart as SVG: few lines, distinguished by colour and dash, so that overlapping lines stay visible.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { Figure } from "./save";

export interface Line {
  name: string;
  points: [number, number][];
  band?: [number, number, number][]; // x, low, high
  colour?: string; // and dash: of a line that keeps them when others are left out
  dash?: string;
  bold?: boolean;
  bare?: boolean; // without points
}

// Okabe and Ito's colours, which colour-blind readers can distinguish
/** A place on the x axis with a name. */
export interface Upright {
  x: number;
  text: string;
  dash: string;
  colour?: string;
}

export const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8c8c8c"];
export const DASHES = ["", "6 3", "2 3", "8 3 2 3"];
const MOST_VALUES = 28; // on the x axis, above which its ticks are round numbers
const ROW = 18, SAMPLE = 26; // of a legend, in the units of the drawing

interface Sample {
  name: string;
  colour: string;
  dash?: string; // of a line; bars have none
  ring?: boolean; // of a mark
  bold?: boolean;
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
      {samples.map(({ name, colour, dash, ring, bold }, i) => {
        const [x, y] = [left + places[i]![0], top + places[i]![1]];
        return (
          <g key={name} style={{ color: colour }}>
            {ring ? <circle class="ring" cx={x + SAMPLE / 2} cy={y - 4} r="6" /> : dash == null ? <rect x={x} y={y - 9} width={SAMPLE} height="10" fill={colour} /> : <line class={bold ? "line bold" : "line"} x1={x} x2={x + SAMPLE} y1={y - 4} y2={y - 4} stroke-dasharray={dash} />}
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

/** Powers of ten around these numbers. */
function powersOver(least: number, most: number): number[] {
  const [from, to] = [Math.floor(Math.log10(least)), Math.ceil(Math.log10(most))];
  return Array.from({ length: Math.max(2, to - from + 1) }, (_, place) => Number((10 ** (from + place)).toPrecision(1)));
}

interface Mark {
  x: number;
  y: number;
  text: string;
  colour: string;
}

interface Props {
  lines: Line[]; x: string; y: string; label: string; log?: boolean; shaded?: [number, number]; rule?: number; marks?: Mark[]; uprights?: Upright[];
  ticks?: number[]; // on the x axis, instead of the values
  loose?: boolean; // the y axis follows the data; otherwise it is a share, from 0 to 1
  steep?: boolean; // the y axis is logarithmic
  compact?: boolean; // one of several small charts
  bare?: boolean; // inside a headline: its legend is enough
}

/** The width of the column that a drawing is in, so that it fills it and its text keeps its size. */
export function useWidth(usual: number): [preact.RefObject<HTMLDivElement>, number] {
  const home = useRef<HTMLDivElement>(null), [wide, setWide] = useState(usual);
  useLayoutEffect(() => {
    const measure = (): void => {
      const now = Math.round(home.current?.clientWidth ?? 0);
      if (now > 0) setWide(Math.max(260, now)); // folded away it has no width
    };
    measure();
    const watch = new ResizeObserver(measure);
    watch.observe(home.current!);
    return () => watch.disconnect();
  }, []);
  return [home, wide];
}

/** Where the axes are, and what they show. */
function scales(props: Props, wide: number) {
  const plot = props.compact || props.bare ? 190 : Math.round(Math.min(340, Math.max(230, wide * 0.46)));
  const all = props.lines.flatMap((line) => line.points.map(([x]) => x)).concat(props.shaded ?? []);
  const last = props.log ? Math.max(...all).toLocaleString("en").length : 0; // half of it stands right of the axis
  const left = 58, right = last > 5 ? 4 + 3.5 * last : 16, top = 12, bottom = 40;
  const scaled = (x: number): number => (props.log ? Math.log2(Math.max(x, 1e-9)) : x);
  const [least, most] = [Math.min(...all.map(scaled)), Math.max(...all.map(scaled))];
  const heights = [...props.lines.flatMap((line) => [...line.points.map(([, y]) => y), ...(props.loose ? (line.band ?? []).flatMap(([, low, up]) => [low, up]) : [])]), ...(props.marks ?? []).map((mark) => mark.y), ...(props.rule == null ? [] : [props.rule])];
  const floor = Math.max(1e-9, Math.min(...heights.filter((y) => y > 0)));
  const levels = props.steep ? powersOver(floor, Math.max(...heights, floor)) : props.loose ? ticksOver(Math.min(...heights), Math.max(...heights)) : [0, 0.25, 0.5, 0.75, 1];
  const risen = (y: number): number => (props.steep ? Math.log10(Math.max(y, floor)) : y);
  const [low, up] = [risen(levels[0]!), risen(levels.at(-1)!)];
  const values = [...new Set(props.lines.flatMap((line) => line.points.map(([x]) => x)))].sort((p, q) => p - q);
  const round = values.length > MOST_VALUES && !props.log; // more values than anyone asks for by name, such as steps
  const ticks = props.ticks ? props.ticks.filter((x) => scaled(x) >= least && scaled(x) <= most) : round ? ticksOver(least, most).filter((x) => x >= least && x <= most) : values;
  const every = Math.ceil(ticks.length / Math.min(9, Math.floor((wide - left - right) / 48)));
  return {
    plot, left, right, top, bottom, levels,
    ticks: ticks.filter((_, i) => i % every === 0),
    tick: (x: number): string => (round || props.log ? x.toLocaleString("en") : String(x)),
    px: (x: number): number => left + ((scaled(x) - least) / (most - least || 1)) * (wide - left - right),
    py: (y: number): number => top + ((up - risen(y)) / (up - low)) * (plot - top - bottom),
  };
}

function styleOf(line: Line, place: number): { colour: string; dash: string } {
  return { colour: line.colour ?? COLOURS[place % COLOURS.length]!, dash: line.dash ?? DASHES[place % DASHES.length]! };
}

/** Names stand in the legend below, never across the curves; a mark is a ring on its curve and a ring in the legend. */
export function Chart(props: Props) {
  const [home, wide] = useWidth(640);
  const { plot, left, right, top, bottom, levels, ticks, tick, px, py } = scales(props, wide);
  const samples = [
    ...props.lines.map((line, i) => ({ name: line.name, ...styleOf(line, i), bold: line.bold })),
    ...(props.uprights ?? []).map((each) => ({ name: each.text, colour: each.colour ?? "var(--soft)", dash: each.dash })),
    ...(props.marks ?? []).filter((mark, place, all) => all.findIndex((other) => other.text === mark.text) === place).map((mark) => ({ name: mark.text, colour: mark.colour, ring: true })),
  ];
  const legendWide = wide - left - right, high = plot + 8 + legendHeight(samples.map((each) => each.name), legendWide);
  return (
    <Figure label={props.label}>
      <div ref={home}>
        <svg class="curves" viewBox={`0 0 ${wide} ${high}`} role="img" aria-label={props.label}>
          {props.shaded && <rect x={px(props.shaded[0])} y={top} width={Math.max(2, px(props.shaded[1]) - px(props.shaded[0]))} height={plot - top - bottom} class="shaded"><title>trained lengths</title></rect>}
          {levels.map((y) => (
            <g key={y}><line x1={left} x2={wide - right} y1={py(y)} y2={py(y)} class="grid" /><text x={left - 8} y={py(y) + 4} text-anchor="end">{y}</text></g>
          ))}
          {ticks.map((x) => <text key={x} x={px(x)} y={plot - bottom + 18} text-anchor="middle">{tick(x)}</text>)}
          <text x={(left + wide - right) / 2} y={plot - 4} text-anchor="middle">{props.x}</text>
          <text transform={`translate(13 ${(top + plot - bottom) / 2}) rotate(-90)`} text-anchor="middle">{props.y}</text>
          {props.rule != null && <line x1={left} x2={wide - right} y1={py(props.rule)} y2={py(props.rule)} class="rule" />}
          {props.uprights?.map((each) => <line key={each.text} x1={px(each.x)} x2={px(each.x)} y1={top} y2={plot - bottom} class="upright" style={{ color: each.colour ?? "var(--soft)" }} stroke-dasharray={each.dash}><title>{each.text}</title></line>)}
          {props.lines.map((line, i) => (
            <g key={line.name} style={{ color: styleOf(line, i).colour }}>
              {line.band && <polygon class="band" points={[...line.band.map(([x, low]) => `${px(x)},${py(low)}`), ...line.band.slice().reverse().map(([x, , up]) => `${px(x)},${py(up)}`)].join(" ")} />}
              <polyline class={line.bold ? "line bold" : "line"} stroke-dasharray={styleOf(line, i).dash} points={line.points.map(([x, y]) => `${px(x)},${py(y)}`).join(" ")} />
              {line.points.length < 12 && !line.bare && line.points.map(([x, y]) => <circle key={x} cx={px(x)} cy={py(y)} r="3"><title>{`${line.name} at ${x}: ${y.toFixed(4)}`}</title></circle>)}
            </g>
          ))}
          {props.marks?.map((mark) => <circle key={`${mark.text} ${mark.x}`} style={{ color: mark.colour }} cx={px(mark.x)} cy={py(mark.y)} r="7" class="ring"><title>{mark.text}</title></circle>)}
          <Legend samples={samples} left={left} top={plot + 16} wide={legendWide} />
        </svg>
      </div>
    </Figure>
  );
}
