//! A tree as one HTML file: every thought with children folds, without a script; two buttons fold and unfold all. The
//! page's own policy forbids it to load anything.

use super::{Page, escape, line, status_line};
use crate::base::text::{sanitize, sanitize_line};
use crate::search::event::Author;
use crate::search::trace;
use crate::search::tree::{Node, NodeId};
use std::fmt::Write;

/// HTML parsers nest 512 elements at most; what is deeper stands beside its parent, with its depth.
const DEEPEST: usize = 380;

const STYLE: &str = "body{font:14px ui-monospace,Menlo,Consolas,monospace;margin:1.5em;color-scheme:light dark}\
details{margin-left:1.2em;border-left:1px solid #8886}p.leaf{margin:0 0 0 2.3em}summary,p.leaf{padding:1px 0;white-space:pre-wrap}\
summary{cursor:pointer}small{opacity:.7}.best{font-weight:bold}.pruned b{text-decoration:line-through;opacity:.65}\
.answer b{outline:1px solid}meter{width:4em;height:.9em}";

const HEAD: &str = "<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n";

const SCRIPT: &str = "function fold(open){for(const d of document.querySelectorAll('details'))d.open=open}";

enum Todo {
    Thought(NodeId),
    Close,
}

pub fn render(page: &Page<'_>) -> String {
    let title = escape(&sanitize_line(&page.title));
    let mut out =
        format!("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n{HEAD}<title>{title}</title>\n<style>{STYLE}</style>\n");
    let _ = write!(out, "<script>{SCRIPT}</script>\n</head>\n<body>\n<h1>{title}</h1>\n");
    for fact in &page.facts {
        let _ = writeln!(out, "<p>{}</p>", escape(&sanitize_line(fact)));
    }
    out.push_str(
        "<p><button onclick=\"fold(true)\">unfold all</button> <button onclick=\"fold(false)\">fold all</button></p>\n",
    );
    let best = page.best_path();
    let mut stack = vec![Todo::Thought(NodeId::ROOT)];
    while let Some(todo) = stack.pop() {
        let Todo::Thought(id) = todo else {
            out.push_str("</details>\n");
            continue;
        };
        let node = page.tree.node(id);
        let strong = if best.contains(&id) { " best" } else { "" };
        let class = format!("{}{strong}", trace::status(node.status));
        let row = row(page, id, node);
        if node.children.is_empty() || node.depth >= DEEPEST {
            let _ = writeln!(out, "<p class=\"leaf {class}\">{row}</p>");
        } else {
            let _ = writeln!(out, "<details open><summary class=\"{class}\">{row}</summary>");
            stack.push(Todo::Close);
        }
        stack.extend(node.children.iter().rev().map(|&child| Todo::Thought(child)));
    }
    out.push_str("</body>\n</html>\n");
    out
}

fn row(page: &Page<'_>, id: NodeId, node: &Node) -> String {
    let text = if node.parent.is_some() { sanitize(&node.text).trim().to_string() } else { line(page, node) };
    let mut out = format!("<small>{id}</small> ");
    if let Some(score) = node.score {
        let share = if score.is_finite() { score.clamp(0.0, 1.0) } else { 0.0 };
        let _ = write!(out, "<meter value=\"{share:.3}\"></meter> {score:.3} ");
    }
    let _ = write!(out, "<b>{}</b>", escape(&text));
    if node.parent.is_none() {
        return out;
    }
    let mut more = vec![status_line(node), format!("depth {}", node.depth)];
    if node.by == Author::User {
        more.push("by the user".into());
    }
    if let Some(logprob) = node.logprob {
        more.push(format!("log-probability {logprob:.3}"));
    }
    for part in &node.parts {
        let value = part.value.map_or("no value".to_string(), |v| format!("{v:.3}"));
        more.push(format!("{} {value} {}", part.evaluator, part.detail).trim_end().to_string());
    }
    if !node.sources.is_empty() {
        let sources: Vec<String> = node.sources.iter().map(NodeId::to_string).collect();
        more.push(format!("merged from {}", sources.join(", ")));
    }
    let _ = write!(out, " <small>{}</small>", escape(&sanitize_line(&more.join(" · "))));
    out
}
