//! A thought tree as a file for others: SVG, HTML that folds, plain text.
//!
//! The files are self-contained: no script or style of elsewhere is asked for, and nothing of a thought's text is taken
//! for markup. They show the tree as it is; prompts and replies stay in the record.

mod html;
mod svg;

use super::event::Outcome;
use super::trace;
use super::tree::{Node, NodeId, ThoughtTree};
use crate::base::text::sanitize_line;
use crate::base::{Error, Result, write_whole};
use std::collections::HashSet;
use std::path::Path;

/// Which kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Svg,
    Html,
    Text,
}

impl Form {
    /// By the end of a file's name.
    ///
    /// # Errors
    /// Another end, or none.
    pub fn of(path: &Path) -> Result<Self> {
        let end = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        match end.as_str() {
            "svg" => Ok(Self::Svg),
            "html" | "htm" => Ok(Self::Html),
            "txt" => Ok(Self::Text),
            _ => Err(Error::input(format!(
                "{}: a tree is exported as .svg, .html or .txt; let the file's name end so",
                sanitize_line(&path.display().to_string())
            ))),
        }
    }
}

/// A tree, and what is said above it.
pub struct Page<'a> {
    pub title: String,
    /// Strategy, model, seed and the like, each on one line.
    pub facts: Vec<String>,
    pub tree: &'a ThoughtTree,
    /// The thoughts on the way to it are shown stronger.
    pub best: Option<NodeId>,
}

impl Page<'_> {
    pub fn render(&self, form: Form) -> String {
        match form {
            Form::Svg => svg::render(self),
            Form::Html => html::render(self),
            Form::Text => self.text(),
        }
    }

    /// Writes the file, replacing what is there once it is whole.
    ///
    /// # Errors
    /// The name's end is no known one, or the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = self.render(Form::of(path)?);
        write_whole(path, &text)
            .map_err(|e| Error::fault(format!("{} cannot be written: {e}", sanitize_line(&path.display().to_string()))))
    }

    fn text(&self) -> String {
        let mut out = format!("{}\n", sanitize_line(&self.title));
        for fact in &self.facts {
            out.push_str(&sanitize_line(fact));
            out.push('\n');
        }
        out.push_str(&trace::render(self.tree, false));
        out
    }

    /// Thoughts from the root to the best one, both included.
    fn best_path(&self) -> HashSet<NodeId> {
        let best = self.best.filter(|best| self.tree.get(*best).is_some());
        best.map(|best| self.tree.path(best).into_iter().chain([NodeId::ROOT]).collect()).unwrap_or_default()
    }
}

/// How a run ended, as a fact of a page.
pub fn outcome_fact(outcome: &Outcome) -> String {
    let verdict = if outcome.solved { "solved" } else { "not solved" };
    format!(
        "{verdict} ({}): {}; {} thoughts, {} tokens, {:.1} s",
        outcome.reason,
        outcome.why,
        outcome.thoughts,
        outcome.usage.tokens(),
        outcome.seconds
    )
}

/// What a row says of a thought beside its text: status and reason.
fn status_line(node: &Node) -> String {
    let status = trace::status(node.status);
    match node.why.as_deref().filter(|why| !why.is_empty()) {
        Some(why) => format!("{status}: {}", sanitize_line(why)),
        None => status.to_string(),
    }
}

/// A thought's text on one line; the root is the puzzle.
fn line(page: &Page<'_>, node: &Node) -> String {
    if node.parent.is_none() {
        return sanitize_line(&page.title);
    }
    let text = sanitize_line(node.text.trim());
    if text.is_empty() { "(empty)".into() } else { text }
}

/// Text as character data or a quoted attribute of XML and HTML. Characters that XML 1.0 forbids are left out.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\u{fffe}' | '\u{ffff}' => {}
            c if c.is_control() && c != '\n' && c != '\t' => {}
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::event::{Author, Event, ScorePart};
    use crate::search::tree::Status;

    fn tree(texts: &[(u32, &str)]) -> ThoughtTree {
        let mut tree = ThoughtTree::default();
        for (parent, text) in texts {
            let node = NodeId(tree.len() as u32);
            let grown = Event::Grown {
                node,
                parent: NodeId(*parent),
                text: text.to_string(),
                by: Author::Model,
                logprob: Some(-0.5),
                token_logprobs: vec![-0.5],
                usage: Default::default(),
            };
            tree.apply(&grown).unwrap();
        }
        tree
    }

    fn page(tree: &ThoughtTree) -> Page<'_> {
        Page {
            title: "sort 3 numbers: 3 1 2".into(),
            facts: vec!["tot-bfs on a model, seed 4".into()],
            tree,
            best: Some(NodeId(3)),
        }
    }

    #[test]
    fn the_three_forms_of_a_small_tree() {
        let mut tree = tree(&[(0, "1"), (0, "7 <b>&\"x\"</b>"), (1, " 2\u{1b}[31m")]);
        let parts = vec![ScorePart { evaluator: "checker".into(), value: Some(0.5), detail: "1 < 2".into() }];
        for event in [
            Event::Scored { node: NodeId(2), score: 0.5, parts },
            Event::Status { node: NodeId(2), status: Status::Pruned, why: Some("smaller left behind".into()) },
            Event::Status { node: NodeId(3), status: Status::Answer, why: Some("right".into()) },
        ] {
            tree.apply(&event).unwrap();
        }
        let page = page(&tree);
        insta::assert_snapshot!("export_svg", page.render(Form::Svg));
        insta::assert_snapshot!("export_html", page.render(Form::Html));
        insta::assert_snapshot!("export_text", page.render(Form::Text));
    }

    #[test]
    fn hostile_texts_are_no_markup_and_the_files_are_well_formed() {
        let hostile =
            ["</text><script>x</script>", "]]>&lt;\u{ffff}\u{0}", "--><!--", "\u{202e}evil", "♻️ 中文 e\u{301}"];
        let texts: Vec<(u32, &str)> = hostile.iter().enumerate().map(|(i, t)| (i as u32, *t)).collect();
        let tree = tree(&texts);
        let page = Page { title: hostile.join(" "), facts: vec![hostile.join(" ")], tree: &tree, best: None };
        for form in [Form::Svg, Form::Html] {
            let text = page.render(form);
            assert!(!text.contains("<script>x"), "{text}");
            assert!(!text.contains(['\u{0}', '\u{1b}', '\u{ffff}', '\u{202e}']), "{text}");
            check_nesting(&text);
        }
    }

    /// Every tag that opens closes, in order: what makes a text well-formed beside its characters.
    fn check_nesting(text: &str) {
        let mut open = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find('<') {
            let end = rest[at..].find('>').expect("a tag ends") + at;
            let tag = &rest[at + 1..end];
            rest = &rest[end + 1..];
            let name = |tag: &str| tag.split([' ', '\n']).next().unwrap().to_string();
            if tag.starts_with(['!', '?']) || tag.ends_with('/') || tag.starts_with("meta") {
                continue;
            }
            match tag.strip_prefix('/') {
                Some(tag) => assert_eq!(open.pop(), Some(name(tag))),
                None => open.push(name(tag)),
            }
            // What stands in these is no markup.
            if let Some(raw @ ("script" | "style")) = open.last().map(String::as_str) {
                let close = format!("</{raw}>");
                rest = &rest[rest.find(&close).expect("it closes")..];
            }
        }
        assert!(open.is_empty(), "{open:?} stay open");
    }

    #[test]
    fn a_path_deeper_than_any_parser_nests_is_written_in_full() {
        let texts: Vec<(u32, String)> = (0..3000).map(|i| (i, format!("step {i}"))).collect();
        let texts: Vec<(u32, &str)> = texts.iter().map(|(p, t)| (*p, t.as_str())).collect();
        let tree = tree(&texts);
        let html = page(&tree).render(Form::Html);
        assert!(html.contains("step 2999"));
        let (mut depth, mut deepest) = (0i32, 0);
        for (at, _) in html.match_indices("details") {
            match &html[at - 1..at] {
                "<" => depth += 1,
                "/" => depth -= 1,
                _ => {}
            }
            deepest = deepest.max(depth);
        }
        assert!(depth == 0 && deepest <= 400, "{depth} {deepest}");
        check_nesting(&html);
        check_nesting(&page(&tree).render(Form::Svg));
    }

    #[test]
    fn the_name_s_end_chooses_the_form() {
        assert_eq!(Form::of(Path::new("a/b.SVG")).unwrap(), Form::Svg);
        assert_eq!(Form::of(Path::new("x.html")).unwrap(), Form::Html);
        assert_eq!(Form::of(Path::new("x.txt")).unwrap(), Form::Text);
        for bad in ["x", "x.pdf", "svg"] {
            let error = Form::of(Path::new(bad)).unwrap_err();
            assert!(error.exit_code() == 2 && error.message().contains(".svg, .html or .txt"));
        }
    }
}
