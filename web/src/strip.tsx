// Answers at every length: for each model two rows of bars, thin where all answers were right, tall where some were wrong.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { LENGTHS, LONGEST, ROUNDS, SHORTEST } from "./sequences";
import { theme } from "./theme";
import { chooseLength, length, packed, startStrip, strip, titleOf } from "./tries";

const KINDS = ["sorted", "one swap"];
const LANE = 20, HIGH = 2 * LANE + 16; // of a canvas: two lanes and the axis
const TICKS = [2, 16, 32, 64, 96, 128];

/** How many answers were right past the trained lengths, in words. */
function summary(model: number): string {
  const { asked, wrong } = strip.value, past = packed[model]!.trained[1], longer = LENGTHS.filter((at) => at > past && asked[at]);
  if (Object.keys(asked).length < LENGTHS.length) return "…";
  const total = (counts: Record<number, number> | undefined, lengths: number[]): number => lengths.reduce((sum, at) => sum + (counts?.[at] ?? 0), 0);
  if (KINDS.every((_, kind) => total(wrong[model]?.[kind], LENGTHS) === 0)) return `every answer right up to ${LONGEST}`;
  const shares = KINDS.map((kind, number) => `${kind} ${Math.floor(100 * (1 - total(wrong[model]?.[number], longer) / total(asked, longer)))}%`);
  return `right past ${past}: ${shares.join(", ")}`;
}

function draw(area: HTMLCanvasElement, wide: number, model: number, dark: boolean): void {
  const pen = area.getContext("2d")!, sharp = devicePixelRatio || 1, step = wide / LENGTHS.length;
  [area.width, area.height] = [wide * sharp, HIGH * sharp];
  pen.scale(sharp, sharp);
  const at = (place: number): number => (place - SHORTEST) * step;
  const [from, to] = packed[model]!.trained;
  pen.fillStyle = dark ? "#363b47" : "#e4e7ee";
  pen.fillRect(at(from), 0, at(to + 1) - at(from), 2 * LANE);
  KINDS.forEach((_, kind) => LENGTHS.forEach((each) => {
    const asked = strip.value.asked[each];
    if (!asked) return;
    const share = (strip.value.wrong[model]?.[kind]?.[each] ?? 0) / asked, high = share ? 6 + (LANE - 8) * share : 3;
    pen.fillStyle = share ? (dark ? "#ff9d66" : "#d55e00") : dark ? "#56b4e9" : "#0072b2";
    pen.fillRect(at(each), kind * LANE + (LANE - high) / 2, Math.max(1, step - (step > 4 ? 1 : 0)), high);
  }));
  pen.fillStyle = dark ? "#e8eaf0" : "#1c1f26";
  pen.fillRect(at(length.value) + step / 2 - 0.75, 0, 1.5, 2 * LANE);
  pen.font = "11px system-ui, sans-serif";
  for (const tick of TICKS) {
    pen.textAlign = tick === SHORTEST ? "left" : tick === LONGEST ? "right" : "center";
    pen.fillText(String(tick), tick === SHORTEST ? 0 : tick === LONGEST ? wide : at(tick) + step / 2, HIGH - 3);
  }
}

function Row({ model }: { model: number }) {
  const canvas = useRef<HTMLCanvasElement>(null), home = useRef<HTMLDivElement>(null), [wide, setWide] = useState(0);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(() => setWide(Math.floor(home.current!.clientWidth)));
    watch.observe(home.current!);
    return () => watch.disconnect();
  }, []);
  const dark = theme.value === "dark";
  useLayoutEffect(() => {
    if (wide > 0) draw(canvas.current!, wide, model, dark);
  });
  const name = titleOf(packed[model]!.name), found = summary(model);
  return (
    <>
      <div class="strip-name"><b>{name}</b><small>{found}</small></div>
      <div class="strip-kinds" aria-hidden="true">{KINDS.map((kind) => <small key={kind}>{kind}</small>)}</div>
      <div class="strip-lane" ref={home}>
        <canvas ref={canvas} style={{ width: wide, height: HIGH }} role="img" aria-label={`answers of ${name} at every length: ${found}`}
          onClick={(event) => chooseLength(SHORTEST + Math.floor((event.offsetX / wide) * LENGTHS.length))} />
      </div>
    </>
  );
}

export function Strip() {
  const home = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const watch = new IntersectionObserver((seen) => seen.some((each) => each.isIntersecting) && startStrip());
    watch.observe(home.current!);
    return () => watch.disconnect();
  }, []);
  const asked = Object.values(strip.value.asked).reduce((total, each) => total + each, 0), all = ROUNDS * LENGTHS.length;
  return (
    <div ref={home} id="strip" data-done={asked === all ? "yes" : "no"}>
      <h3>Where each breaks</h3>
      <p class="note">Answers at every length from {SHORTEST} to {LONGEST}: {ROUNDS} sorted sequences and the same {ROUNDS} with two neighbours swapped. A thin blue bar: all right; a tall orange one: the taller, the more were wrong. Trained lengths are shaded; press a length to go there.</p>
      {asked < all && <progress max={all} value={asked} aria-label="lengths answered" />}
      <div class="strips">{packed.map((model, number) => <Row key={model.name} model={number} />)}</div>
    </div>
  );
}
