//! What `solved` compares with: the data file's own answer column, where there is one.
//!
//! Nothing else looks at it. A blank or wrong column changes `solved` and neither the search nor the error score.

use super::list::read_list;
use super::number::Number;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// No answer column: the puzzle's own check.
    Own,
    /// The answer column as read; `None` where it is blank or holds no list, so that nothing matches it.
    Column(Option<Vec<Number>>),
}

impl Reference {
    /// From a row's answer; `None` where the file has no such column.
    pub fn of(column: Option<&str>) -> Self {
        match column {
            None => Self::Own,
            Some(text) if text.trim().is_empty() => Self::Column(None),
            Some(text) => Self::Column(read_list(text).ok()),
        }
    }
}
