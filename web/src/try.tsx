// Try it: a sum, answered by the trained model inside this file; heads can be closed. Without a model, problems with
// precomputed answers.
import { content } from "./content";
import { costOf } from "./cost";
import { counted, SUMS } from "./counting";
import { Learned, learningOf } from "./learning";
import { Heat } from "./maps";
import { headTitle, numberOf, siteOf, siteTitle } from "./names";
import { a, b, canClose, chosen, closed, example, fits, largest, model, shown, step, toggle, type Shown } from "./state";

function random(): void {
  a.value = String(Math.floor(Math.random() * (largest + 1)));
  b.value = String(Math.floor(Math.random() * (largest + 1)));
}

/** A carry that runs through every digit: the digits of b are nine minus those of a, and one more. */
function hardest(): void {
  let first = 0;
  while (first % 10 === 0) first = Math.floor(Math.random() * largest) + 1;
  a.value = String(first);
  b.value = String(largest - first + 1);
}

function presets(): [string, string[]][] {
  const found: [string, string[]][] = [["all open", []]];
  const heads = content.heads;
  if (heads?.alone) found.push([`what the single-head rule would ${heads.recent ? "narrow" : "prune"} (${heads.alone.count})`, heads.alone.heads]);
  if (heads?.together) found.push([`largest safe set ${heads.together.optimal ? "" : "found "}(${heads.together.count})`, heads.together.heads]);
  return found.filter(([, each]) => canClose(new Set(each)));
}

function Presets() {
  const ablation = content.heads?.ablation, same = (heads: string[]): boolean => heads.length === closed.value.size && heads.every((head) => closed.value.has(head));
  return (
    <>
      <div class="presets" role="group" aria-label="heads to close">
        {presets().map(([name, heads]) => <button key={name} aria-pressed={same(heads)} onClick={() => (closed.value = new Set(heads))}>{name}</button>)}
      </div>
      {ablation && ablation !== "zero" && <p class="note">A head that is closed here outputs zero; the study {ablation === "window" ? "narrowed what it sees" : `replaced its output by ${ablation === "mean" ? "its mean" : "its output on another problem"}`} ({ablation}). The numbers here can differ from those of the study.</p>}
    </>
  );
}

function correctAnswer(now: Shown): string {
  return model ? `${Number(a.value)} + ${Number(b.value)} = ${Number(a.value) + Number(b.value)}` : `the right answer is ${now.wanted.join(" ")}`;
}

function Digits({ now }: { now: Shown }) {
  const correct = now.said.every((word, place) => word === now.wanted[place]);
  return (
    <div class="answer">
      <div class="digits" role="group" aria-label="the answer, token by token">
        {now.said.map((word, place) => {
          const chance = now.likely[place]![0]![1];
          return (
            <button class={`digit ${word === now.wanted[place] ? "good" : "bad"} ${step.value === place ? "now" : ""}`} key={place} aria-pressed={step.value === place}
              onClick={() => (step.value = place)} title={`${word} with probability ${chance.toFixed(4)}`}>
              <b class={word.length > 2 ? "word" : ""}>{word}</b>
              <i style={{ height: `${Math.round(chance * 100)}%` }} />
              <small>{chance > 0.9995 ? "1.000" : chance.toFixed(3)}</small>
            </button>
          );
        })}
      </div>
      <p class={correct ? "right verdict" : "wrong verdict"} id="verdict">{correct ? "✓ right" : `✗ wrong: ${correctAnswer(now)}`}</p>
      <p class="chances">
        {model ? "Digit" : "Token"} {step.value + 1} of {now.said.length}: {(now.likely[step.value] ?? now.likely[0]!).slice(0, 3).map(([word, chance]) => `${word} ${chance.toFixed(4)}`).join(", ")}
      </p>
    </div>
  );
}

function Accuracy() {
  const now = counted.value;
  if (!now) return null;
  return (
    <div class="accuracy">
      <progress max={now.of} value={now.done} aria-label="sums counted" />
      <output id="accuracy" aria-live={now.done < now.of ? "off" : "polite"}>
        {now.done < now.of ? `${now.done} of ${SUMS} fresh sums…` : `${now.of - now.wrong} of ${now.of} fresh sums right (${(1 - now.wrong / now.of).toFixed(3)})`}
        {closed.value.size ? ` without ${closed.value.size} heads` : " with all heads"}
      </output>
    </div>
  );
}

/** The row of a site's maps that belongs to the selected token of the answer. */
function marked(now: Shown, site: Shown["maps"][number]): number | null {
  const first = site.queries.length - now.said.length;
  return site.site.startsWith("decoder") && first >= 0 ? first + step.value : null;
}

/** Scrolls to the large map where it is above the others. */
function enlarge(head: string): void {
  chosen.value = head;
  if (matchMedia("(max-width: 30rem)").matches) requestAnimationFrame(() => document.querySelector(".enlarged")?.scrollIntoView());
}

function Cost({ head }: { head: string }) {
  const heads = content.heads, row = heads?.heads.find((each) => each.head === head), cost = heads && row && costOf(heads, row);
  if (!heads || !row || cost == null) return null;
  const sentence = heads.counted ? `Alone it raises the ${heads.counted} by ${cost.toFixed(4)}` : `Alone it costs ${(100 * cost).toFixed(2)}%`;
  return <p>{sentence} ({row.verdict}){row.pattern ? `; pattern: ${row.pattern}` : ""}.</p>;
}

function Site({ now, site }: { now: Shown; site: Shown["maps"][number] }) {
  const own = site.heads.map((_, number) => `${site.site}.${number}`);
  return (
    <div class="site">
      {model ? <button class="name" onClick={() => toggle(own)} title="close or open all heads of this site">{siteTitle(site.site)}</button> : <span class="name">{siteTitle(site.site)}</span>}
      {own.map((head, number) => {
        const off = closed.value.has(head);
        return (
          <figure key={head} class={chosen.value === head ? "head chosen" : "head"}>
            <button class="map" onClick={() => enlarge(head)} aria-label={`enlarge ${headTitle(head)}`} title={head}>
              <Heat map={site.heads[number]!} queries={site.queries} keys={site.keys} size={84} dim={off} label={`attention of ${headTitle(head)}`} marked={marked(now, site)} />
            </button>
            <figcaption>
              <label><input type="checkbox" id={`gate-${head}`} aria-label={headTitle(head)} checked={!off} disabled={!canClose(new Set([head]))} onChange={() => toggle([head])} /> H{number}</label>
            </figcaption>
          </figure>
        );
      })}
    </div>
  );
}

function Enlarged({ now }: { now: Shown }) {
  const head = chosen.value, site = now.maps.find((each) => head && each.site === siteOf(head));
  if (!head || !site) return <p class="hint">Click a map to enlarge it; untick a head to close it. Hover over a cell to see its weight and to highlight its key in all maps.</p>;
  return (
    <aside class="enlarged" aria-label={`head ${headTitle(head)}`}>
      <h3>{headTitle(head)}</h3>
      <Heat map={site.heads[numberOf(head)]!} queries={site.queries} keys={site.keys} size={260} large
        label={`attention of ${headTitle(head)}, large`} marked={marked(now, site)} dim={closed.value.has(head)} />
      <Cost head={head} />
      <p><button disabled={!canClose(new Set([head]))} onClick={() => toggle([head])}>{closed.value.has(head) ? "open it" : "close it"}</button> <button onClick={() => (chosen.value = null)}>back</button></p>
    </aside>
  );
}

function Sum() {
  const field = (which: typeof a, label: string) => (
    <input aria-label={label} inputMode="numeric" value={which.value} maxLength={String(largest).length}
      style={{ width: `calc(${String(largest).length}ch + 2rem)` }} class={fits(which.value) ? "" : "wrong"} aria-invalid={!fits(which.value)} onInput={(event) => (which.value = event.currentTarget.value.trim())} />
  );
  return (
    <div class="sum">
      {field(a, "first number")} <span>+</span> {field(b, "second number")} <span>=</span>
      <button onClick={random} id="random">random</button>
      <button onClick={hardest} id="hardest" title="a carry through every digit">hardest</button>
    </div>
  );
}

function Examples() {
  return (
    <>
      {content.only ? null : <p>This page has no model inside; the answers to these problems were precomputed{content.studies[0] ? <> with <b>{content.studies[0]}</b></> : ""}, each token given the right tokens before it. Heads can be closed one at a time, or as the two sets below.</p>}
      {content.examples.length > 1 && (
        <div class="presets" role="group" aria-label="problems">
          {content.examples.map((_, place) => <button key={place} aria-pressed={example.value === place} onClick={() => (example.value = place)}>problem {place + 1}</button>)}
        </div>
      )}
      <p class="read">{content.examples[example.value]!.read.join(" ")} →</p>
    </>
  );
}

export function Try() {
  if (!model && !content.examples.length) return <p>This page has no model and no precomputed problems; <code>headway heads</code> computes some.</p>;
  const now = shown.value;
  return (
    <>
      {content.model && <p class="studied">The trained adder <b>{content.model.run}</b>, inside this page.</p>}
      {model ? <Sum /> : <Examples />}
      {now ? <Digits now={now} /> : <p class="wrong" role="alert">Enter two numbers from 0 to {largest}.</p>}
      <Presets />
      <Accuracy />
      {now && (
        <div class="maps">
          <div class="sites">{now.maps.map((site) => <Site key={site.site} now={now} site={site} />)}</div>
          <Enlarged now={now} />
        </div>
      )}
      <Learned runs={learningOf("try")} title="How it learned" />
    </>
  );
}
