// Everything shown can be taken along: figures as SVG, tables as CSV, files as they are.
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";

export function save(name: string, content: BlobPart): void {
  const kind = name.endsWith(".svg") ? "image/svg+xml" : name.endsWith(".csv") ? "text/csv" : "application/json";
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type: kind }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** A file of the folder, which is kept packed. */
export async function unpacked(data: string): Promise<ArrayBuffer> {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

function fileName(label: string, ending: string): string {
  return label.toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 60).replace(/^-|-$/g, "") + ending;
}

/** How the shapes of a figure look, written into its copy: outside the page there is no style sheet. */
function styled(shown: SVGElement): SVGElement {
  const copy = shown.cloneNode(true) as SVGElement;
  const [from, to] = [shown.querySelectorAll("*"), copy.querySelectorAll("*")];
  from.forEach((each, place) => {
    const look = getComputedStyle(each), wanted = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-weight", "font-family", "text-anchor"];
    to[place]!.setAttribute("style", wanted.map((name) => `${name}:${look.getPropertyValue(name)}`).join(";"));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return copy;
}

export function Figure(props: { label: string; children: ComponentChildren; class?: string }) {
  const home = useRef<HTMLElement>(null);
  const take = () => save(fileName(props.label, ".svg"), new XMLSerializer().serializeToString(styled(home.current!.querySelector("svg")!)));
  return (
    <figure ref={home} class={`chart ${props.class ?? ""}`}>
      {props.children}
      <button class="take" onClick={take} aria-label={`save as SVG: ${props.label}`}>SVG</button>
    </figure>
  );
}

export function Table(props: { label: string; children: ComponentChildren; id?: string }) {
  const home = useRef<HTMLTableElement>(null);
  const cell = (each: Element): string => `"${(each.textContent ?? "").replace(/ [\u25b2\u25bc]$/, "").replaceAll('"', '""')}"`;
  const take = () => {
    const rows = [...home.current!.querySelectorAll("tr")].map((row) => [...row.children].map(cell).join(","));
    save(fileName(props.label, ".csv"), rows.join("\n") + "\n");
  };
  return (
    <div class="table">
      <div class="scroll" tabIndex={0} role="region" aria-label={props.label}><table ref={home} id={props.id}>{props.children}</table></div>
      <button class="take" onClick={take} aria-label={`save as CSV: ${props.label}`}>CSV</button>
    </div>
  );
}
