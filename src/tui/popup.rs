//! What may lie over the screen. At most one pop-up is open; it gets every key first.

use super::field::Field;
use crate::search::tree::NodeId;

#[derive(Clone)]
pub enum Popup {
    Help {
        top: usize,
    },
    Palette {
        field: Field,
        selected: usize,
    },
    Find {
        field: Field,
        /// Where the selection was, for Escape.
        from: NodeId,
    },
    /// A thought's text, to be replaced.
    Edit {
        node: NodeId,
        field: Field,
    },
    /// A new thought under `parent`.
    Add {
        parent: NodeId,
        field: Field,
    },
    /// Leave although a search runs?
    ConfirmQuit,
    /// How the run ended.
    Banner,
    Compare {
        a: NodeId,
        b: NodeId,
        top: usize,
    },
}

impl Popup {
    /// The field that takes typed and pasted text.
    pub fn field(&mut self) -> Option<&mut Field> {
        match self {
            Self::Palette { field, .. }
            | Self::Find { field, .. }
            | Self::Edit { field, .. }
            | Self::Add { field, .. } => Some(field),
            Self::Help { .. } | Self::ConfirmQuit | Self::Banner | Self::Compare { .. } => None,
        }
    }
}
