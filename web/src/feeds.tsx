// Which heads make others look where they look, tested by closing them.
import { content } from "./content";
import { headTitle } from "./names";
import { Table } from "./save";
import { chosen } from "./state";

export function FeedsPart() {
  const feeds = content.heads?.feeds ?? [];
  if (!feeds.length) return null;
  return (
    <>
      <h3>Which heads feed others</h3>
      <p>A head is closed, and where the later ones look is measured again: what falls by more than half was fed by it.</p>
      <Table label="which heads feed others">
        <thead><tr><th>head</th><th>looks at</th><th>weight on it</th><th>because of</th><th>weight left without that</th></tr></thead>
        <tbody>{feeds.map((feed) => (
          <tr key={feed.head} class={chosen.value === feed.head ? "chosen" : ""} onClick={() => (chosen.value = feed.head)}>
            <td>{headTitle(feed.head)}</td><td>{feed.pattern}</td><td class="number">{feed.score.toFixed(3)}</td>
            <td>{feed.fed_by.map(headTitle).join(", ")}</td><td class="number">{feed.fed_by.map((head) => feed.without[head]!.toFixed(3)).join(", ")}</td>
          </tr>
        ))}</tbody>
      </Table>
    </>
  );
}
