//! What Transformers adds to Jinja for chat templates: `raise_exception`, `strftime_now`, and a `tojson` that writes as
//! Python's `json.dumps` does (spaces after separators, no escaping for web pages).

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};

/// Values inside each other that `tojson` follows.
const MAX_DEPTH: usize = 64;

pub fn add(environment: &mut Environment<'static>) {
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("the template says: {message}")))
    });
    environment.add_function("strftime_now", |format: String| -> Result<String, Error> { now(&format) });
    environment.add_filter("tojson", to_json);
}

fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Transformers' other options are taken, and have the values its templates give them.
    for name in ["ensure_ascii", "separators", "sort_keys"] {
        let _: Option<Value> = options.get(name)?;
    }
    options.assert_all_used()?;
    let mut out = String::new();
    write_json(value, indent.map(|width| width.min(16)), 0, &mut out)?;
    Ok(Value::from_safe_string(out))
}

fn write_json(value: &Value, indent: Option<usize>, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::BadSerialization, format!("values more than {MAX_DEPTH} deep")));
    }
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&value.to_string()),
        ValueKind::Map => {
            let keys: Vec<Value> = value.try_iter()?.collect();
            write_list('{', '}', keys.len(), indent, depth, out, |index, out| {
                write_text(&keys[index].to_string(), out);
                out.push_str(": ");
                write_json(&value.get_item(&keys[index])?, indent, depth + 1, out)
            })?;
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_list('[', ']', items.len(), indent, depth, out, |index, out| {
                write_json(&items[index], indent, depth + 1, out)
            })?;
        }
        _ => write_text(&value.to_string(), out),
    }
    Ok(())
}

/// `[1, 2]`, or a line each.
fn write_list(
    open: char,
    close: char,
    len: usize,
    indent: Option<usize>,
    depth: usize,
    out: &mut String,
    mut element: impl FnMut(usize, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |out: &mut String, depth: usize| {
        if let Some(width) = indent.filter(|_| len > 0) {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', width * depth));
        }
    };
    out.push(open);
    for index in 0..len {
        if index > 0 {
            out.push_str(if indent.is_some() { "," } else { ", " });
        }
        new_line(out, depth + 1);
        element(index, out)?;
    }
    new_line(out, depth);
    out.push(close);
    Ok(())
}

fn write_text(text: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(text).to_string());
}

/// The local time in C's `strftime` form.
fn now(format: &str) -> Result<String, Error> {
    let refuse = || Error::new(ErrorKind::InvalidOperation, "the time cannot be written in this form");
    if format.len() > 200 {
        return Err(refuse());
    }
    // A leading character tells "nothing to write" from "no room".
    let format = std::ffi::CString::new(format!(".{format}")).map_err(|_| refuse())?;
    let mut buffer = [0u8; 1024];
    // SAFETY: `time` takes a null pointer; `localtime_r` fills the zeroed struct; `strftime` writes at most the buffer's
    // length into the buffer and reads the two others.
    let written = unsafe {
        let seconds = libc::time(std::ptr::null_mut());
        let mut parts: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&seconds, &mut parts).is_null() {
            return Err(refuse());
        }
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), format.as_ptr(), &parts)
    };
    if written == 0 {
        return Err(refuse());
    }
    Ok(String::from_utf8_lossy(&buffer[1..written]).into_owned())
}
