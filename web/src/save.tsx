// Everything shown can be saved: figures as SVG, tables as CSV, files as they are.
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";

export type Cells = (string | number | null | undefined)[];

export function save(name: string, content: BlobPart): void {
  const kind = name.endsWith(".svg") ? "image/svg+xml" : name.endsWith(".csv") ? "text/csv" : "application/json";
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type: kind }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Unpacks a file of the folder. */
export async function unpacked(data: string): Promise<ArrayBuffer> {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

function fileName(label: string, ending: string): string {
  return label.toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 60).replace(/^-|-$/g, "") + ending;
}

function saveCsv(label: string, rows: Cells[]): void {
  // text that a spreadsheet would take for a formula gets an apostrophe before it; a number may be negative
  const safe = (text: string): string => (/^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text);
  const cell = (each: Cells[number]): string => `"${safe(String(each ?? "")).replaceAll('"', '""')}"`;
  save(fileName(label, ".csv"), rows.map((row) => row.map(cell).join(",")).join("\n") + "\n");
}

const LOOKS = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "paint-order", "opacity", "font-size", "font-weight", "font-family", "text-anchor",
];

/** A figure for other documents: its style written into every shape, in light colours, on white. */
function styled(shown: SVGSVGElement): SVGElement {
  const copy = shown.cloneNode(true) as SVGSVGElement, { theme } = document.documentElement.dataset;
  document.documentElement.dataset.theme = "light"; // nothing is painted until it is put back
  const [from, to] = [shown.querySelectorAll("*"), copy.querySelectorAll("*")];
  from.forEach((each, place) => {
    const look = getComputedStyle(each);
    to[place]!.setAttribute("style", LOOKS.map((name) => `${name}:${look.getPropertyValue(name)}`).join(";"));
  });
  document.documentElement.dataset.theme = theme;
  const { x, y, width, height } = shown.viewBox.baseVal, paper = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [name, value] of Object.entries({ x, y, width, height, fill: "#ffffff" })) paper.setAttribute(name, String(value));
  copy.prepend(paper);
  copy.removeAttribute("style");
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return copy;
}

export function Figure(props: { label: string; children: ComponentChildren; class?: string; csv?: () => Cells[] }) {
  const home = useRef<HTMLElement>(null);
  const take = () => save(fileName(props.label, ".svg"), new XMLSerializer().serializeToString(styled(home.current!.querySelector("svg")!)));
  return (
    <figure ref={home} class={`chart ${props.class ?? ""}`}>
      <div class="takes">
        <button onClick={take} aria-label={`save as SVG: ${props.label}`}>SVG</button>
        {props.csv && <button onClick={() => saveCsv(props.label, props.csv!())} aria-label={`save as CSV: ${props.label}`}>CSV</button>}
      </div>
      <div class="scroll" tabIndex={0} role="region" aria-label={`figure: ${props.label}`}>{props.children}</div>
    </figure>
  );
}

/** A table; its CSV is what it shows, or what `csv` returns where that is more than fits on the page. */
export function Table(props: { label: string; children: ComponentChildren; id?: string; csv?: () => Cells[] }) {
  const home = useRef<HTMLTableElement>(null);
  const shown = (): Cells[] => [...home.current!.querySelectorAll("tr")].map((row) => [...row.children].map((each) => each.textContent));
  return (
    <div class="table">
      <div class="takes"><button onClick={() => saveCsv(props.label, (props.csv ?? shown)())} aria-label={`save as CSV: ${props.label}`}>CSV</button></div>
      <div class="scroll" tabIndex={0} role="region" aria-label={props.label}><table ref={home} id={props.id}>{props.children}</table></div>
    </div>
  );
}
