// Where each head looks on average. A pattern is a description, not a cause.
import { content } from "./content";
import { Heat } from "./maps";
import { shortHead } from "./names";
import { chosen } from "./state";

export function PatternsPart() {
  const maps = content.maps, rows = new Map(content.heads!.heads.map((row) => [row.head, row]));
  if (!maps) return null;
  return (
    <>
      <h3>Where they look on average</h3>
      <p>Rows are queries, columns are keys, by position; below each map the pattern that gains most over shuffled weights, and the share of problems in which it wins as well. A pattern is a description, not a cause.</p>
      <div class="patterns">
        {maps.flatMap((site) => site.heads.map((weights, number) => {
          const head = `${site.site}.${number}`, row = rows.get(head);
          return (
            <figure key={head} class={chosen.value === head ? "head chosen" : "head"}>
              <button class="map" onClick={() => (chosen.value = head)} aria-label={`average map of ${head}`}>
                <Heat map={Float32Array.from(weights.flat())} queries={site.queries} keys={site.keys} size={84} label={`average attention of ${head}`} />
              </button>
              <figcaption>{shortHead(head)}<br />{row?.pattern_scores ? `${row.pattern_scores.label} ${(100 * row.pattern_scores.stable).toFixed(0)}%` : "–"}</figcaption>
            </figure>
          );
        }))}
      </div>
    </>
  );
}
