// The signal of each encoding as heat maps: the table that is added, or the bias of the scores at each distance.
import { useLayoutEffect, useRef } from "preact/hooks";
import type { Signal } from "./content";
import { theme } from "./theme";

/** Numbers around zero: blue above, orange below; keys that cannot be seen are grey. */
function Plane(props: { values: (number | null)[][]; most: number; label: string; mark: [number, number] }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const rows = props.values.length, columns = props.values[0]!.length;
  const dark = theme.value === "dark";
  useLayoutEffect(() => {
    const draw = canvas.current!.getContext("2d")!;
    const paper = dark ? [24, 27, 33] : [255, 255, 255], picture = draw.createImageData(columns, rows);
    props.values.forEach((line, r) => line.forEach((value, c) => {
      const share = Math.min(1, Math.abs(value ?? 0) / (props.most || 1)), full = (value ?? 0) < 0 ? [213, 94, 0] : [0, 114, 178];
      paper.forEach((from, i) => (picture.data[4 * (r * columns + c) + i] = value == null ? (dark ? 60 : 205) : from + (full[i]! - from) * share));
      picture.data[4 * (r * columns + c) + 3] = 255;
    }));
    draw.putImageData(picture, 0, 0);
  });
  const [from, to] = props.mark.map((place) => `${(100 * place) / columns}%`);
  return (
    <div class="plane">
      <canvas ref={canvas} width={columns} height={rows} role="img" aria-label={props.label} />
      <i style={{ left: from, width: `calc(${to} - ${from})` }} title="trained range" />
    </div>
  );
}

function transposed(table: (number | null)[][]): (number | null)[][] {
  return table[0]!.map((_, column) => table.map((row) => row[column]!));
}

export function Encodings({ signals }: { signals: Signal[] }) {
  const drawn = signals.filter((each) => each.after.table || each.after.bias);
  if (!drawn.length) return null;
  return (
    <>
      <h4>What each encoding adds, before and after training (orange below zero, blue above; the line is the trained range)</h4>
      <div class="encodings">
        {drawn.map((each) => {
          const kind = each.after.table ? "table" : "bias", values = [each.before[kind], each.after[kind]];
          const most = Math.max(...values.flatMap((moment) => (moment ?? []).flat().map((value) => Math.abs(value ?? 0))));
          const half = Math.floor(each.tokens / 2);
          const mark: [number, number] = kind === "table" ? [0, each.trained] : [Math.max(0, half - each.trained + 1), Math.min(each.tokens, half + each.trained)];
          return ["before", "after"].map((moment, place) => values[place] && (
            <figure key={each.positions + each.index + moment}>
              <figcaption>{each.positions}{each.index === "sequential" ? "" : `, ${each.index}`}, {moment} training</figcaption>
              <Plane values={kind === "table" ? transposed(values[place]!) : values[place]!} most={most} mark={mark} label={`${each.positions} ${moment} training: ${kind === "table" ? "feature by position" : "head by distance"}`} />
              <small>{kind === "table" ? `across: position 0 to ${each.tokens - 1}; down: feature` : `across: distance −${half} to ${each.tokens - half - 1}; down: head`}; largest {most.toFixed(2)}</small>
            </figure>
          ));
        })}
      </div>
    </>
  );
}
