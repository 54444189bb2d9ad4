// Attention as heat maps on canvas: a row for each query, a column for each key.
import { useEffect, useRef, useState } from "preact/hooks";
import { token } from "./state";

/** From the paper's colour to blue, evenly in lightness; dark weights on light paper and the other way round. */
function colour(share: number, dark: boolean): string {
  const paper = dark ? [24, 27, 33] : [255, 255, 255];
  const full = dark ? [120, 190, 255] : [0, 60, 130];
  return `rgb(${paper.map((from, i) => Math.round(from + (full[i]! - from) * share)).join()})`;
}

export function Heat(props: {
  map: Float32Array; queries: string[]; keys: string[]; size: number; label: string; dim?: boolean; marked?: number | null;
  axes?: boolean;
}) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [under, setUnder] = useState<[number, number] | null>(null);
  const { queries, keys, size, axes } = props;
  const left = axes ? 22 : 0, top = axes ? 18 : 0;
  const cell = Math.floor(size / Math.max(keys.length, queries.length));
  const width = left + cell * keys.length, height = top + cell * queries.length;
  useEffect(() => {
    const area = canvas.current!, draw = area.getContext("2d")!;
    const dark = document.documentElement.dataset.theme === "dark";
    const sharp = devicePixelRatio || 1;
    [area.width, area.height] = [width * sharp, height * sharp];
    draw.scale(sharp, sharp);
    draw.clearRect(0, 0, width, height);
    queries.forEach((_, q) => keys.forEach((_, k) => {
      draw.fillStyle = colour(props.map[q * keys.length + k] ?? 0, dark);
      draw.fillRect(left + k * cell, top + q * cell, cell - 1, cell - 1);
    }));
    const ink = dark ? "#e8eaf0" : "#1c1f26";
    if (props.marked != null) {
      draw.strokeStyle = dark ? "#ffb454" : "#c75000";
      draw.lineWidth = 2;
      draw.strokeRect(left + 1, top + props.marked * cell + 1, cell * keys.length - 3, cell - 3);
    }
    if (token.value != null && token.value < keys.length && axes) {
      draw.strokeStyle = dark ? "#5fd0a0" : "#007a5a";
      draw.strokeRect(left + token.value * cell + 1, top + 1, cell - 3, cell * queries.length - 3);
    }
    if (axes) {
      draw.fillStyle = ink;
      draw.font = "12px system-ui, sans-serif";
      draw.textAlign = "center";
      keys.forEach((key, k) => draw.fillText(key, left + (k + 0.5) * cell, 12));
      draw.textAlign = "right";
      queries.forEach((query, q) => draw.fillText(query, left - 5, top + (q + 0.5) * cell + 4));
    }
  });
  const said = under ? `${queries[under[0]]} → ${keys[under[1]]}: ${(props.map[under[0] * keys.length + under[1]] ?? 0).toFixed(3)}` : "";
  return (
    <span class={props.dim ? "heat off" : "heat"}>
      <canvas ref={canvas} style={{ width, height }} role="img" aria-label={props.label} title={said}
        onMouseMove={(event) => {
          const k = Math.floor((event.offsetX - left) / cell), q = Math.floor((event.offsetY - top) / cell);
          setUnder(k >= 0 && q >= 0 && k < keys.length && q < queries.length ? [q, k] : null);
          if (axes && k >= 0 && k < keys.length) token.value = k;
        }}
        onMouseLeave={() => { setUnder(null); token.value = null; }} />
      {axes && <output class="under">{said || " "}</output>}
    </span>
  );
}
