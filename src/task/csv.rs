//! A reader for comma-separated values as RFC 4180 has them: quoted fields with commas, newlines and doubled quotes
//! inside, LF or CRLF, a byte-order mark in front. Refuses what is ambiguous (an open quote, text after a closing one).

/// One record, with the line it begins on (from 1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub line: usize,
    pub fields: Vec<String>,
}

/// Where a file stops being CSV, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    pub line: usize,
    pub what: String,
}

/// All records in order. Blank lines are no records.
pub fn read(text: &str) -> Result<Vec<Record>, Malformed> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut records = Vec::new();
    let mut chars = text.chars().peekable();
    let mut line = 1;
    while chars.peek().is_some() {
        let start = line;
        let mut fields = Vec::new();
        let mut quoted_any = false;
        loop {
            let mut field = String::new();
            let mut ended = false;
            if chars.next_if_eq(&'"').is_some() {
                quoted_any = true;
                let opened = line;
                loop {
                    match chars.next() {
                        Some('"') if chars.next_if_eq(&'"').is_some() => field.push('"'),
                        Some('"') => break,
                        Some(c) => {
                            line += usize::from(c == '\n');
                            field.push(c);
                        }
                        None => {
                            return Err(Malformed {
                                line: opened,
                                what: "a quote opens here and never closes: add the closing `\"`".into(),
                            });
                        }
                    }
                }
            } else {
                while let Some(c) = chars.next_if(|c| !matches!(c, ',' | '\n' | '\r')) {
                    field.push(c);
                }
            }
            match chars.next() {
                Some(',') => {}
                Some('\n') => ended = true,
                Some('\r') => {
                    chars.next_if_eq(&'\n');
                    ended = true;
                }
                None => {
                    fields.push(field);
                    break;
                }
                Some(c) => {
                    return Err(Malformed {
                        line,
                        what: format!(
                            "`{}` follows a closing quote: double the quotes inside a quoted field (`\"\"`)",
                            c.escape_default()
                        ),
                    });
                }
            }
            fields.push(field);
            if ended {
                line += 1;
                break;
            }
        }
        if quoted_any || fields.len() > 1 || !fields[0].trim().is_empty() {
            records.push(Record { line: start, fields });
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, expected: &[(usize, &[&str])]) {
        let records = read(text).unwrap();
        let shown: Vec<(usize, Vec<&str>)> =
            records.iter().map(|r| (r.line, r.fields.iter().map(String::as_str).collect())).collect();
        let expected: Vec<(usize, Vec<&str>)> = expected.iter().map(|(l, f)| (*l, f.to_vec())).collect();
        assert_eq!(shown, expected, "{text:?}");
    }

    #[test]
    fn quotes_line_ends_and_marks_are_read() {
        check("a,b\n1,2\n", &[(1, &["a", "b"]), (2, &["1", "2"])]);
        check("\u{feff}a,b\r\n1,2", &[(1, &["a", "b"]), (2, &["1", "2"])]);
        check("a,\"[1, 2]\"\n\n\nb,", &[(1, &["a", "[1, 2]"]), (4, &["b", ""])]);
        check("\"x\n\"\"y\"\"\",1\nz", &[(1, &["x\n\"y\"", "1"]), (3, &["z"])]);
        check("\"\"\n", &[(1, &[""])]);
        check("a\rb", &[(1, &["a"]), (2, &["b"])]);
        check("", &[]);
    }

    #[test]
    fn malformed_files_name_their_line() {
        assert_eq!(read("a\n\"b\nc").unwrap_err().line, 2);
        let fault = read("a\nb,\"c\"d").unwrap_err();
        assert_eq!(fault.line, 2);
        assert!(fault.what.contains("`d` follows a closing quote"), "{fault:?}");
    }

    proptest! {
        #[test]
        fn written_records_are_read_back(rows in prop::collection::vec(prop::collection::vec("[a-c\",\r\n ]{0,6}", 1..4), 0..5)) {
            let text: String = rows
                .iter()
                .map(|row| {
                    let fields: Vec<String> = row.iter().map(|f| format!("\"{}\"", f.replace('"', "\"\""))).collect();
                    fields.join(",") + "\r\n"
                })
                .collect();
            let read: Vec<Vec<String>> = read(&text).unwrap().into_iter().map(|r| r.fields).collect();
            prop_assert_eq!(read, rows);
        }
    }
}
