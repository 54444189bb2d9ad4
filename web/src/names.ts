// The names of sites and heads as people say them: "decoder cross L0H3" for decoder.0.cross.3. Files keep the others.
const OWN = /^(encoder|decoder)\.(\d+)\.(self|cross|feed)$/; // a site of Headway's models
const WRITTEN = /\b(encoder|decoder)\.(\d+)\.(self|cross|feed)(?:\.(\d+))?\b/g; // in a sentence

export function siteOf(head: string): string {
  return head.slice(0, head.lastIndexOf("."));
}

export function numberOf(head: string): number {
  return Number(head.slice(head.lastIndexOf(".") + 1));
}

export function siteTitle(site: string): string {
  const found = OWN.exec(site);
  if (!found) return site;
  return `${found[1]} ${found[3] === "feed" ? "feed-forward" : found[3]} L${found[2]}`;
}

/** The kind of ablation of a study, with the size of a window. */
export function kindOf(heads: { ablation: string; words?: string }): string {
  return heads.words ?? `${heads.ablation} ablation`;
}

/** What a study does to heads: it removes them, or narrows what they see. */
export function doing(heads: { ablation: string }): { done: string; narrow: string; narrowing: string; can: string } {
  return heads.ablation === "window"
    ? { done: "narrowed", narrow: "narrowing", narrowing: "Narrowing", can: "can be narrowed" }
    : { done: "removed", narrow: "removal", narrowing: "Removing", can: "can go" };
}

export function headTitle(head: string): string {
  const group = /^(.*)\.group(\d+)$/.exec(head);
  if (group) return `${siteTitle(group[1]!)} group ${group[2]}`;
  return OWN.test(siteOf(head)) ? `${siteTitle(siteOf(head))}H${numberOf(head)}` : `${siteOf(head)} H${numberOf(head)}`;
}

export function shortHead(head: string): string {
  if (/\.group\d+$/.test(head)) return headTitle(head);
  const found = OWN.exec(siteOf(head));
  return found ? `${found[1]!.slice(0, 3)} ${found[3]} L${found[2]}H${numberOf(head)}` : `${siteOf(head).slice(-22)} H${numberOf(head)}`;
}

/** A sentence with the names of heads and sites as people say them. */
export function spoken(text: string): string {
  return text.replace(WRITTEN, (name, _stack, _layer, _kind, number) => (number == null ? siteTitle(name) : headTitle(name)));
}
