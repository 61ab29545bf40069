//! Data files of puzzles: comma-separated values with a header, or JSON lines. Which one is told from the first character.
//!
//! A task names the columns it needs ([`Columns`]); rows come back as text with their place, so that a refused value can
//! name file, line and column. Rows keep their own ids: equal puzzles with different ids stay apart, and an id that
//! stands twice is refused.

use super::csv;
use crate::base::nearest::hint;
use crate::base::text::sanitize_line;
use crate::base::{Error, Result};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::Read;
use std::path::Path;

/// A data file above this is refused: it is no set of puzzles.
const MAX_BYTES: u64 = 256 << 20;

/// Column names a task reads, in any case; each with its other names, the first one for messages.
#[derive(Debug, Clone, Copy)]
pub struct Columns<'a> {
    /// No names: rows are numbered from 0.
    pub id: &'a [&'a str],
    pub inputs: &'a [&'a [&'a str]],
    /// The answer column, which may be missing and may say anything.
    pub answer: &'a [&'a str],
    /// Whether inputs are lists of integers, or texts of any kind.
    pub holds: Holds,
}

/// What the inputs of a task are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    Lists,
    Texts,
}

/// One puzzle's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub id: String,
    /// The text of each of [`Columns::inputs`], in that order.
    pub inputs: Vec<String>,
    /// `None`: the file has no such column. Blank text: this row has no answer.
    pub answer: Option<String>,
    /// File and line, for messages.
    pub place: String,
}

impl Row {
    /// An error about one input: names file, line and column.
    pub fn refuse(&self, columns: &Columns<'_>, input: usize, what: &str) -> Error {
        Error::input(format!("{}, column `{}`: {what}", self.place, columns.inputs[input][0]))
    }
}

/// Reads all rows of a file, in order.
pub fn read(path: &Path, columns: &Columns<'_>) -> Result<Vec<Row>> {
    let name = format!("data file {}", path.display());
    let file = std::fs::File::open(path).map_err(|e| Error::input(e.to_string()).context(&name))?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|e| Error::input(e.to_string()).context(&name))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::input(format!("{name}: is larger than 256 MiB; split it into several files")));
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        let line = 1 + e.as_bytes()[..e.utf8_error().valid_up_to()].iter().filter(|&&b| b == b'\n').count();
        Error::input(format!("{name} line {line}: is not UTF-8 text; save the file as UTF-8"))
    })?;
    read_text(&text, &name, columns)
}

/// [`read`] of a text already in memory; `name` stands in messages.
pub fn read_text(text: &str, name: &str, columns: &Columns<'_>) -> Result<Vec<Row>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let rows =
        if text.trim_start().starts_with('{') { json_lines(text, name, columns) } else { table(text, name, columns) }?;
    if rows.is_empty() {
        return Err(Error::input(format!("{name}: holds no puzzles")));
    }
    let mut seen: HashMap<&str, &str> = HashMap::new();
    for row in &rows {
        if let Some(first) = seen.insert(&row.id, &row.place) {
            return Err(Error::input(format!(
                "{}: id `{}` stands twice, first at {first}; give each puzzle its own id",
                row.place,
                sanitize_line(&row.id)
            )));
        }
    }
    Ok(rows)
}

fn table(text: &str, name: &str, columns: &Columns<'_>) -> Result<Vec<Row>> {
    let records = csv::read(text).map_err(|e| Error::input(format!("{name} line {}: {}", e.line, e.what)))?;
    let Some((header, records)) = records.split_first() else {
        return Err(Error::input(format!("{name}: is empty; its first line must be {}", header_line(columns))));
    };
    let is = |field: &str, names: &[&str]| names.iter().any(|name| field.trim().eq_ignore_ascii_case(name));
    for names in [columns.id, columns.answer].into_iter().chain(columns.inputs.iter().copied()) {
        if header.fields.iter().filter(|field| is(field, names)).count() > 1 {
            let (line, column) = (header.line, names[0]);
            return Err(Error::input(format!("{name} line {line}: the column `{column}` stands twice; keep one")));
        }
    }
    let find = |names: &[&str]| header.fields.iter().position(|field| is(field, names));
    let need = |names: &[&str]| {
        find(names).ok_or_else(|| {
            Error::input(format!(
                "{name} line {}: there is no column `{}` in the header `{}`{}; the first line must be {}",
                header.line,
                names[0],
                sanitize_line(&header.fields.join(",")),
                hint(names[0], header.fields.iter().map(|f| f.trim())),
                header_line(columns)
            ))
        })
    };
    let id_column = if columns.id.is_empty() { None } else { Some(need(columns.id)?) };
    let input_columns = columns.inputs.iter().map(|names| need(names)).collect::<Result<Vec<_>>>()?;
    let answer_column = find(columns.answer);
    let mut rows = Vec::with_capacity(records.len());
    for record in records {
        let place = format!("{name} line {}", record.line);
        let cell = |column: usize| record.fields.get(column).map(|field| field.trim());
        if record.fields.len() > header.fields.len() {
            return Err(Error::input(format!(
                "{place}: has {} fields where the header has {}; put a list in double quotes",
                record.fields.len(),
                header.fields.len()
            )));
        }
        let id = match id_column {
            Some(column) => cell(column).unwrap_or_default().to_string(),
            None => rows.len().to_string(),
        };
        if id.is_empty() {
            return Err(Error::input(format!("{place}, column `{}`: is blank; give the puzzle an id", columns.id[0])));
        }
        let mut inputs = Vec::new();
        for (names, &column) in columns.inputs.iter().zip(&input_columns) {
            match cell(column) {
                Some(text) => inputs.push(text.to_string()),
                None => {
                    return Err(Error::input(format!("{place}, column `{}`: is missing on this line", names[0])));
                }
            }
        }
        let answer = answer_column.map(|column| cell(column).unwrap_or_default().to_string());
        rows.push(Row { id, inputs, answer, place });
    }
    Ok(rows)
}

fn header_line(columns: &Columns<'_>) -> String {
    let all = [columns.id].into_iter().chain(columns.inputs.iter().copied()).chain([columns.answer]);
    let names: Vec<&str> = all.filter_map(|names| names.first().copied()).collect();
    format!("`{}`", names.join(","))
}

fn json_lines(text: &str, name: &str, columns: &Columns<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let place = format!("{name} line {}", at + 1);
        let refuse = |what: String| Error::input(format!("{place}: {what}"));
        let Object(object) = serde_json::from_str(line).map_err(|e| {
            refuse(format!("is not a JSON object on one line ({e}); write a line such as {}", json_example(columns)))
        })?;
        let find = |names: &[&str]| {
            object
                .iter()
                .find(|(key, _)| names.iter().any(|name| key.eq_ignore_ascii_case(name)))
                .map(|(_, value)| value)
        };
        let need = |names: &[&str]| {
            find(names).ok_or_else(|| {
                refuse(format!(
                    "there is no field `{}`{}; write a line such as {}",
                    names[0].to_lowercase(),
                    hint(names[0], object.keys().map(String::as_str)),
                    json_example(columns)
                ))
            })
        };
        let id = match columns.id {
            [] => Value::from(rows.len()),
            names => need(names)?.clone(),
        };
        let id = match id {
            Value::String(text) if !text.trim().is_empty() => text.trim().to_string(),
            Value::Number(number) => number.to_string(),
            _ => return Err(refuse(format!("field `{}` must be a number or a text", columns.id[0].to_lowercase()))),
        };
        let mut inputs = Vec::new();
        for names in columns.inputs {
            let field = |what: &str| refuse(format!("field `{}`: {what}", names[0].to_lowercase()));
            inputs.push(text_of(need(names)?, columns.holds).map_err(|what| field(&what))?);
        }
        let answer = find(columns.answer).map(|value| text_of(value, columns.holds).unwrap_or_default());
        rows.push(Row { id, inputs, answer, place });
    }
    Ok(rows)
}

/// A JSON object in which no key stands twice: which of two values is meant, nobody can say.
struct Object(Map<String, Value>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Map<String, Value>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
                let mut map = Map::new();
                let mut known = HashSet::new();
                while let Some(key) = entries.next_key::<String>()? {
                    if !known.insert(key.to_ascii_lowercase()) {
                        return Err(A::Error::custom(format!("the field `{}` stands twice", sanitize_line(&key))));
                    }
                    let value = entries.next_value()?;
                    map.insert(key, value);
                }
                Ok(map)
            }
        }
        deserializer.deserialize_map(Entries).map(Self)
    }
}

fn json_example(columns: &Columns<'_>) -> String {
    let value = match columns.holds {
        Holds::Lists => "[4, 5, 6]",
        Holds::Texts => "\"…\"",
    };
    let id = columns.id.first().map(|id| format!("\"{}\": 0", id.to_lowercase()));
    let fields = columns.inputs.iter().map(|names| format!("\"{}\": {value}", names[0].to_lowercase()));
    format!("{{{}}}", id.into_iter().chain(fields).collect::<Vec<_>>().join(", "))
}

/// A value's text from JSON.
fn text_of(value: &Value, holds: Holds) -> Result<String, String> {
    match (holds, value) {
        (Holds::Lists, value) => list_text(value),
        (Holds::Texts, Value::String(text)) => Ok(text.clone()),
        (Holds::Texts, Value::Null) => Ok(String::new()),
        (Holds::Texts, value) => Ok(value.to_string()),
    }
}

/// A list's text from JSON: a text as it stands, or an array of integers and texts.
fn list_text(value: &Value) -> Result<String, String> {
    let item = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) if number.is_i64() || number.is_u64() => Ok(number.to_string()),
        // A number that JSON readers round is not the puzzle's number any more.
        Value::Number(number) => Err(format!("{number} is not an integer of 64 bits; put longer ones in quotes")),
        other => Err(format!("`{other}` is not an integer")),
    };
    match value {
        Value::Array(items) => Ok(items.iter().map(item).collect::<Result<Vec<_>, _>>()?.join(", ")),
        Value::Null => Ok(String::new()),
        other => item(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SORTING: Columns<'_> =
        Columns { id: &["ID"], inputs: &[&["Unsorted", "numbers"]], answer: &["Sorted"], holds: Holds::Lists };

    fn rows(text: &str) -> Vec<(String, String, Option<String>)> {
        read_text(text, "f", &SORTING).unwrap().into_iter().map(|r| (r.id, r.inputs[0].clone(), r.answer)).collect()
    }

    fn refusal(text: &str) -> String {
        read_text(text, "f", &SORTING).unwrap_err().to_string()
    }

    fn row(id: &str, input: &str, answer: Option<&str>) -> (String, String, Option<String>) {
        (id.into(), input.into(), answer.map(String::from))
    }

    #[test]
    fn tables_are_read_by_column_name() {
        let text = "\u{feff}sorted, ID ,note,UNSORTED\r\n\"[1, 2]\",a,x,\"[2, 1]\"\r\n,b,,3\r\n";
        assert_eq!(rows(text), [row("a", "[2, 1]", Some("[1, 2]")), row("b", "3", Some(""))]);
        assert_eq!(rows("ID,Unsorted\n0,1\n"), [row("0", "1", None)]);
        assert_eq!(rows("ID,Unsorted,Sorted\n0,1\n"), [row("0", "1", Some(""))]);
    }

    #[test]
    fn what_stands_twice_is_refused_with_its_line() {
        let check = |text: &str, parts: [&str; 2]| {
            let told = refusal(text);
            assert!(parts.iter().all(|part| told.contains(part)), "{told}");
        };
        let good = "{\"id\": 0, \"unsorted\": \"1 2\"}\n";
        let twice = "{\"id\": 1, \"unsorted\": \"1 2\", \"unsorted\": \"3 4\"}\n";
        check(&format!("{good}{twice}"), ["line 2", "the field `unsorted` stands twice"]);
        check("{\"id\": 1, \"ID\": 2, \"unsorted\": [1]}", ["line 1", "the field `ID` stands twice"]);
        check("ID,Unsorted,unsorted\n1,2 1,3 4\n", ["line 1", "the column `Unsorted` stands twice"]);
    }

    #[test]
    fn json_lines_take_text_and_arrays() {
        let text =
            "{\"id\": 0, \"numbers\": \"4 5 6\"}\n\n{\"id\": \"b\", \"unsorted\": [4, \"5\", -6], \"sorted\": null}\n";
        assert_eq!(rows(text), [row("0", "4 5 6", None), row("b", "4, 5, -6", Some(""))]);
    }

    #[test]
    fn texts_are_taken_as_they_stand_and_rows_without_ids_are_numbered() {
        let columns = Columns { id: &[], inputs: &[&["Question"]], answer: &["Answer"], holds: Holds::Texts };
        let rows = |text: &str| -> Vec<(String, String, Option<String>)> {
            let rows = read_text(text, "f", &columns).unwrap();
            rows.into_iter().map(|r| (r.id, r.inputs[0].clone(), r.answer)).collect()
        };
        let expected = [row("0", "1, 2?", Some("x")), row("1", "no", Some(""))];
        assert_eq!(rows("question,answer\n\"1, 2?\",x\nno,\n"), expected);
        assert_eq!(rows("{\"question\": 1.5, \"answer\": [1]}"), [row("0", "1.5", Some("[1]"))]);
        let refused = read_text("{\"id\": 0}", "f", &columns).unwrap_err().to_string();
        assert!(refused.contains("no field `question`") && refused.contains("{\"question\": \"…\"}"), "{refused}");
    }

    #[test]
    fn equal_puzzles_with_different_ids_stay_apart() {
        assert_eq!(rows("{\"id\":0,\"numbers\":\"4 5\"}\n{\"id\":2,\"numbers\":\"4 5\"}").len(), 2);
    }

    #[test]
    fn refusals_name_place_and_remedy() {
        let check = |text: &str, parts: &[&str]| {
            let message = refusal(text);
            for part in parts {
                assert!(message.contains(part), "{message:?} lacks {part:?}");
            }
        };
        check("", &["f: is empty", "`ID,Unsorted,Sorted`"]);
        check("ID,Unsorted\n", &["holds no puzzles"]);
        check("ID,Unsortd\n0,1", &["f line 1", "no column `Unsorted`", "did you mean `Unsortd`"]);
        check("ID,Unsorted\n0,1\n0,2", &["f line 3", "id `0` stands twice", "f line 2"]);
        check("ID,Unsorted\n,2", &["f line 2", "column `ID`", "is blank"]);
        check("ID,Unsorted\n0,1,2", &["f line 2", "3 fields", "double quotes"]);
        check("ID,Unsorted\n0", &["f line 2", "column `Unsorted`", "missing on this line"]);
        check("ID,Unsorted\n0,\"1", &["f line 2", "never closes"]);
        check("{\"id\":0}", &["f line 1", "no field `unsorted`"]);
        check("{\"id\":0,\"numbers\":[1.5]}", &["f line 1", "field `unsorted`", "1.5"]);
        check("{\"id\":0,\"numbers\":[123456789012345678901]}", &["in quotes"]);
        check("{\"id\":0,\"numbers\":\"1\"}\n{\"id\":", &["f line 2", "not a JSON object"]);
        check("{\"id\":1,\"numbers\":\"1\"}\n{\"id\":\"1\",\"numbers\":\"2\"}", &["id `1` stands twice"]);
    }
}
