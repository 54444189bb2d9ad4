// Which upstream heads the patterns of others depend on, tested by ablation.
import { content } from "./content";
import { headTitle } from "./names";
import { Table } from "./save";
import { chosen } from "./state";

export function UpstreamPart() {
  const found = content.heads?.feeds ?? [];
  if (!found.length) return null;
  return (
    <>
      <h3>Which heads depend on upstream heads</h3>
      <p>Each head is ablated, and the patterns of the later heads are measured again. A head depends on an upstream head if it loses more than half of its weight on its pattern.</p>
      <Table label="which heads depend on upstream heads">
        <thead><tr><th>head</th><th>pattern</th><th>weight on it</th><th>upstream heads</th><th>weight without them</th></tr></thead>
        <tbody>{found.map((each) => (
          <tr key={each.head} class={chosen.value === each.head ? "chosen" : ""} onClick={() => (chosen.value = each.head)}>
            <td>{headTitle(each.head)}</td><td>{each.pattern}</td><td class="number">{each.score.toFixed(3)}</td>
            <td>{each.fed_by.map(headTitle).join(", ")}</td><td class="number">{each.fed_by.map((head) => each.without[head]!.toFixed(3)).join(", ")}</td>
          </tr>
        ))}</tbody>
      </Table>
    </>
  );
}
