//! A thought tree as plain text, for a terminal without a screen, a log or an export.
//!
//! ```text
//! #0
//! ├─ #1 0.500 pruned " 7": smaller left behind
//! └─ #2 1.000 closed " 3"
//!    └─ #3 1.000 answer " 3, 7": right
//! ```

use super::tree::{Node, NodeId, Status, ThoughtTree};
use crate::base::text::sanitize_line;
use std::fmt::Write;

/// The tree, a line a thought, children in order of growth; `ascii` draws without box characters.
pub fn render(tree: &ThoughtTree, ascii: bool) -> String {
    let (branch, last, down, gap) =
        if ascii { ("|- ", "`- ", "|  ", "   ") } else { ("├─ ", "└─ ", "│  ", "   ") };
    let mut out = String::from("#0\n");
    // An explicit stack: a path may be as deep as its puzzle is long. Each entry: thought, indent, whether it is the last.
    let mut stack: Vec<(NodeId, String, bool)> = Vec::new();
    let push = |stack: &mut Vec<(NodeId, String, bool)>, node: &Node, indent: &str| {
        for (i, &child) in node.children.iter().enumerate().rev() {
            stack.push((child, indent.to_string(), i + 1 == node.children.len()));
        }
    };
    push(&mut stack, tree.node(NodeId::ROOT), "");
    while let Some((id, indent, is_last)) = stack.pop() {
        let node = tree.node(id);
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{indent}{}{}", if is_last { last } else { branch }, line(id, node));
        push(&mut stack, node, &format!("{indent}{}", if is_last { gap } else { down }));
    }
    out
}

fn line(id: NodeId, node: &Node) -> String {
    let score = node.score.map_or_else(|| "-".to_string(), |score| format!("{score:.3}"));
    let mut line = format!("{id} {score} {} \"{}\"", status(node.status), sanitize_line(&node.text));
    if let Some(why) = &node.why {
        line.push_str(": ");
        line.push_str(&sanitize_line(why));
    }
    line
}

/// A status in one word.
pub fn status(status: Status) -> &'static str {
    match status {
        Status::Open => "open",
        Status::Closed => "closed",
        Status::Pruned => "pruned",
        Status::Pinned => "pinned",
        Status::Answer => "answer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::event::{Author, Event};

    #[test]
    fn thoughts_stand_below_their_parents_and_cannot_steer_the_terminal() {
        let mut tree = ThoughtTree::default();
        for (parent, text) in [(0, "a"), (0, "b\nc"), (1, "d\x1b[2J"), (2, "e")] {
            let node = NodeId(tree.len() as u32);
            tree.apply(&Event::Grown {
                node,
                parent: NodeId(parent),
                text: text.into(),
                by: Author::Model,
                logprob: None,
                token_logprobs: Vec::new(),
                usage: Default::default(),
            })
            .unwrap();
        }
        tree.apply(&Event::Scored { node: NodeId(1), score: 0.5, parts: Vec::new() }).unwrap();
        tree.apply(&Event::Status { node: NodeId(4), status: Status::Answer, why: Some("right".into()) }).unwrap();
        let expected =
            "#0\n|- #1 0.500 open \"a\"\n|  `- #3 - open \"d\"\n`- #2 - open \"b c\"\n   `- #4 - answer \"e\": right\n";
        assert_eq!(render(&tree, true), expected);
    }
}
