// Attention as heat maps on canvas: a row for each query, a column for each key, tokens on the axes.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { token } from "./state";
import { theme } from "./theme";

const MOST_TOKENS = 24; // above which the axes of a small map are left out

/** From the background colour to blue, evenly in lightness; dark on light paper and the other way round. */
export function colour(share: number, dark: boolean): number[] {
  const paper = dark ? [24, 27, 33] : [255, 255, 255];
  const full = dark ? [120, 190, 255] : [0, 60, 130];
  return paper.map((from, i) => Math.round(from + (full[i]! - from) * share));
}

/** A map of many cells as an image of a pixel each: thousands of rectangles would take too long. */
function imageOf(map: Float32Array, queries: number, keys: number, dark: boolean): HTMLCanvasElement {
  const area = document.createElement("canvas");
  [area.width, area.height] = [keys, queries];
  const draw = area.getContext("2d")!, image = draw.createImageData(keys, queries);
  const shades = Array.from({ length: 256 }, (_, level) => colour(level / 255, dark));
  for (let i = 0; i < queries * keys; i++) image.data.set([...shades[Math.round(255 * (map[i] ?? 0))]!, 255], 4 * i);
  draw.putImageData(image, 0, 0);
  return area;
}

function clipped(word: string, large: boolean): string {
  return large ? word.slice(0, 6) : word.slice(0, 1);
}

export function Heat(props: {
  map: Float32Array; queries: string[]; keys: string[]; size: number; label: string; dim?: boolean; marked?: number | null; large?: boolean; quiet?: boolean; // without the line that tells the weight of a cell
  whole?: boolean; // tokens stand on the axes only where there is room for all of their letters
}) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [under, setUnder] = useState<[number, number] | null>(null);
  const { queries, keys, size, large } = props;
  const longest = Math.max(...queries.map((each) => each.length));
  const cell = Math.max(1, Math.floor(size / Math.max(keys.length, queries.length))), gap = cell > 4 ? 1 : 0;
  const axes = props.whole ? cell >= 7 * longest : large || Math.max(queries.length, keys.length) <= MOST_TOKENS;
  const left = !axes ? 0 : large ? 10 + 7 * Math.min(longest, 6) : 10, top = !axes ? 0 : large ? 18 : 11;
  const width = left + cell * keys.length, height = top + cell * queries.length;
  const own = keys.join(" "), followed = token.value?.keys === own ? token.value.place : null;
  const dark = theme.value === "dark";
  useLayoutEffect(() => {
    const area = canvas.current!, draw = area.getContext("2d")!;
    const sharp = devicePixelRatio || 1;
    [area.width, area.height] = [width * sharp, height * sharp];
    draw.scale(sharp, sharp);
    draw.clearRect(0, 0, width, height);
    if (!gap) {
      draw.imageSmoothingEnabled = false;
      draw.drawImage(imageOf(props.map, queries.length, keys.length, dark), left, top, cell * keys.length, cell * queries.length);
    } else queries.forEach((_, q) => keys.forEach((_, k) => {
      draw.fillStyle = `rgb(${colour(props.map[q * keys.length + k] ?? 0, dark).join()})`;
      draw.fillRect(left + k * cell, top + q * cell, cell - gap, cell - gap);
    }));
    draw.lineWidth = large ? 2 : 1.5;
    if (props.marked != null) {
      draw.strokeStyle = dark ? "#ffb454" : "#c75000";
      draw.strokeRect(left + 1, top + props.marked * cell + 1, cell * keys.length - 3, cell - 3);
    }
    if (followed != null) {
      draw.strokeStyle = dark ? "#5fd0a0" : "#007a5a";
      draw.strokeRect(left + followed * cell + 1, top + 1, cell - 3, cell * queries.length - 3);
    }
    if (large && under) {
      draw.strokeStyle = dark ? "#e8eaf0" : "#1c1f26";
      draw.strokeRect(left + under[1] * cell, top + under[0] * cell, cell - 1, cell - 1);
    }
    if (axes) {
      draw.fillStyle = dark ? "#e8eaf0" : "#1c1f26";
      draw.font = `${large ? 12 : 9}px system-ui, sans-serif`;
      draw.textAlign = "center";
      keys.forEach((key, k) => draw.fillText(clipped(key, !!large && (props.whole || cell > 20)), left + (k + 0.5) * cell, top - (large ? 6 : 3)));
      draw.textAlign = "right";
      queries.forEach((query, q) => draw.fillText(clipped(query, !!large), left - (large ? 5 : 2), top + (q + 0.5) * cell + (large ? 4 : 3)));
    }
  });
  const title = under ? `${queries[under[0]]} → ${keys[under[1]]}: ${(props.map[under[0] * keys.length + under[1]] ?? 0).toFixed(3)}` : "";
  const look = (q: number, k: number): void => {
    const inside = k >= 0 && q >= 0 && k < keys.length && q < queries.length;
    setUnder(inside ? [q, k] : null);
    if (k >= 0 && k < keys.length && token.value?.place !== k) token.value = { keys: own, place: k };
  };
  const leave = (): void => {
    setUnder(null);
    token.value = null;
  };
  const walk = (event: KeyboardEvent): void => {
    const way = ({ ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] } as Record<string, [number, number]>)[event.key];
    if (!way) return;
    event.preventDefault();
    const [q, k] = under ? [under[0] + way[0], under[1] + way[1]] : [0, 0];
    if (q >= 0 && q < queries.length && k >= 0 && k < keys.length) look(q, k);
  };
  return (
    <span class={props.dim ? "heat off" : "heat"}>
      <canvas ref={canvas} style={{ width, height }} role="img" aria-label={props.label} title={title}
        {...(large && { tabIndex: 0, onKeyDown: walk, onBlur: leave })}
        onMouseMove={(event) => look(Math.floor((event.offsetY - top) / cell), Math.floor((event.offsetX - left) / cell))} onMouseLeave={leave} />
      {large && !props.quiet && <output class="under">{title || "Use the arrow keys to move from cell to cell."}</output>}
    </span>
  );
}
