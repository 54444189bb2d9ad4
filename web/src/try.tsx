// Try it: a sum, answered by the trained model inside this file; heads can be closed.
import { content } from "./content";
import { counted, SUMS } from "./counting";
import { Heat } from "./maps";
import { sitesOf } from "./model";
import { a, allHeads, answered, b, chosen, closed, largest, model, step, toggle, truth, valid } from "./state";

export function siteTitle(site: string): string {
  const [stack, layer, kind] = site.split(".");
  return `${stack![0]!.toUpperCase()}${stack!.slice(1)} ${kind} L${layer}`;
}

function random(): void {
  a.value = String(Math.floor(Math.random() * (largest + 1)));
  b.value = String(Math.floor(Math.random() * (largest + 1)));
}

/** A carry that runs through every digit: the digits of b are nine minus those of a, and one more. */
function hardest(): void {
  const first = Math.floor(Math.random() * (largest - 1)) + 1;
  a.value = String(first);
  b.value = String(largest - first + 1);
}

function presets(): [string, string[]][] {
  const found: [string, string[]][] = [["all open", []]];
  const heads = content.heads;
  if (heads?.alone) found.push([`what the single-head rule would prune (${heads.alone.count})`, heads.alone.heads]);
  if (heads?.together) found.push([`largest safe set (${heads.together.count})`, heads.together.heads]);
  return found;
}

function Digits() {
  const said = answered.value, words = model!.vocabulary;
  if (!said) return <p class="wrong" role="alert">Two numbers from 0 to {largest}, please.</p>;
  const correct = said.digits.every((digit, place) => digit === truth.value[place]);
  return (
    <div class="answer">
      <div class="digits" role="group" aria-label="the answer, digit by digit">
        {said.digits.map((digit, place) => {
          const chance = said.probabilities[place]![digit]!;
          const good = digit === truth.value[place];
          return (
            <button class={`digit ${good ? "good" : "bad"} ${step.value === place ? "now" : ""}`} key={place} aria-pressed={step.value === place}
              onClick={() => (step.value = place)} title={`${words[digit]} with probability ${chance.toFixed(4)}`}>
              <b>{words[digit]}</b>
              <i style={{ height: `${Math.round(chance * 100)}%` }} />
              <small>{chance > 0.9995 ? "1.000" : chance.toFixed(3)}</small>
            </button>
          );
        })}
      </div>
      <p class={correct ? "right verdict" : "wrong verdict"} id="verdict">
        {correct ? "✓ right" : `✗ wrong: ${Number(a.value)} + ${Number(b.value)} = ${Number(a.value) + Number(b.value)}`}
      </p>
      <Chances />
    </div>
  );
}

function Chances() {
  const said = answered.value!;
  const likely = said.probabilities[step.value]!.map((chance, word) => [chance, model!.vocabulary[word]!] as const);
  likely.sort((one, other) => other[0] - one[0]);
  return (
    <p class="chances">
      Digit {step.value + 1} of {said.digits.length}: {likely.slice(0, 3).map(([chance, word]) => `${word} ${chance.toFixed(4)}`).join(", ")}
    </p>
  );
}

function Accuracy() {
  const now = counted.value;
  if (!now) return null;
  return (
    <div class="accuracy">
      <progress max={now.of} value={now.done} aria-label="sums counted" />
      <output id="accuracy">
        {now.done < now.of ? `${now.done} of ${SUMS} fresh sums…` : `${now.of - now.wrong} of ${now.of} fresh sums right (${(1 - now.wrong / now.of).toFixed(3)})`}
        {closed.value.size ? ` without ${closed.value.size} heads` : " with all heads"}
      </output>
    </div>
  );
}

function tokens(site: string): [string[], string[]] {
  const words = model!.vocabulary, said = answered.value!;
  const read = [...String(a.value).padStart(model!.digits, "0"), "+", ...String(b.value).padStart(model!.digits, "0")];
  const written = ["›", ...said.digits.slice(0, -1).map((digit) => words[digit]!)];
  if (site.startsWith("encoder")) return [read, read];
  return [written, site.endsWith("cross") ? read : written];
}

function Site({ site }: { site: string }) {
  const said = answered.value!, [queries, keys] = tokens(site);
  const own = allHeads.filter((head) => head.startsWith(site + "."));
  return (
    <div class="site">
      <button class="name" onClick={() => toggle(own)} title="close or open all heads of this site">{siteTitle(site)}</button>
      {own.map((head, number) => {
        const off = closed.value.has(head);
        return (
          <figure key={head} class={chosen.value === head ? "head chosen" : "head"}>
            <button class="map" onClick={() => (chosen.value = head)} aria-label={`enlarge ${head}`}>
              <Heat map={said.maps[site]![number]!} queries={queries} keys={keys} size={84} dim={off}
                label={`attention of ${head}`} marked={site.startsWith("decoder") ? step.value : null} />
            </button>
            <figcaption>
              <label><input type="checkbox" id={`gate-${head}`} checked={!off} onChange={() => toggle([head])} /> H{number}</label>
            </figcaption>
          </figure>
        );
      })}
    </div>
  );
}

function Enlarged() {
  const head = chosen.value, said = answered.value!;
  if (!head) return <p class="hint">Press a map to enlarge it; untick a head to close it. Hover a cell for its weight.</p>;
  const site = head.slice(0, head.lastIndexOf(".")), number = Number(head.slice(head.lastIndexOf(".") + 1));
  const [queries, keys] = tokens(site);
  const row = content.heads?.heads.find((each) => each.head === head);
  return (
    <aside class="enlarged" aria-label={`head ${head}`}>
      <h3>{siteTitle(site)} H{number}</h3>
      <Heat map={said.maps[site]![number]!} queries={queries} keys={keys} size={260} axes
        label={`attention of ${head}, large`} marked={site.startsWith("decoder") ? step.value : null} dim={closed.value.has(head)} />
      {row && <p>Alone it costs {(100 * row.drop).toFixed(2)}% ({row.verdict}){row.pattern ? `; it looks: ${row.pattern}` : ""}.</p>}
      <p><button onClick={() => toggle([head])}>{closed.value.has(head) ? "open it" : "close it"}</button> <button onClick={() => (chosen.value = null)}>back</button></p>
    </aside>
  );
}

export function Try() {
  if (!model) return <p>This page has no model inside: its subject is one of your own, or no adder was trained.</p>;
  const field = (which: typeof a, label: string) => (
    <input aria-label={label} inputMode="numeric" value={which.value} maxLength={String(largest).length}
      class={valid.value ? "" : "wrong"} onInput={(event) => (which.value = event.currentTarget.value.trim())} />
  );
  return (
    <>
      <div class="sum">
        {field(a, "first number")} <span>+</span> {field(b, "second number")} <span>=</span>
        <button onClick={random} id="random">random</button>
        <button onClick={hardest} id="hardest" title="a carry through every digit">hardest</button>
      </div>
      <Digits />
      <div class="presets" role="group" aria-label="heads to close">
        {presets().map(([name, heads]) => (
          <button key={name} onClick={() => (closed.value = new Set(heads))}>{name}</button>
        ))}
      </div>
      <Accuracy />
      {answered.value && (
        <div class="maps">
          <div class="sites">{sitesOf(model).map((site) => <Site key={site} site={site} />)}</div>
          <Enlarged />
        </div>
      )}
    </>
  );
}
