//! Makes Transformers' `generation` blocks transparent: they mark the assistant's words for training and print what is in
//! them. Each tag becomes an `if true` of the same shape, so whitespace control and line numbers stay as they are.

/// Replaces the tags, outside comments and `raw` blocks.
pub fn make_transparent(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut raw = false;
    while let Some(at) = rest.find("{%").into_iter().chain(rest.find("{#").filter(|_| !raw)).min() {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let comment = rest.starts_with("{#");
        let close = if comment { "#}" } else { "%}" };
        // From behind the opening, so that `{%}` does not close itself.
        let Some(end) = rest[2..].find(close).map(|e| e + 4) else { break };
        let tag = &rest[..end];
        let (name, before, after) = parts(tag);
        match name {
            _ if comment => out.push_str(tag),
            "raw" => {
                raw = true;
                out.push_str(tag);
            }
            "endraw" => {
                raw = false;
                out.push_str(tag);
            }
            "generation" if !raw => out.push_str(&format!("{before}if true{after}")),
            "endgeneration" if !raw => out.push_str(&format!("{before}endif{after}")),
            _ => out.push_str(tag),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

/// A tag's words, and what stands before and after them (delimiters, dashes, space).
fn parts(tag: &str) -> (&str, &str, &str) {
    let inner_end = tag.len() - 2;
    let start =
        tag[2..inner_end].find(|c: char| !c.is_whitespace() && c != '-' && c != '+').map_or(inner_end, |i| i + 2);
    let end = tag[start..inner_end]
        .rfind(|c: char| !c.is_whitespace() && c != '-' && c != '+')
        .map_or(start, |i| start + i + tag[start + i..].chars().next().map_or(1, char::len_utf8));
    (&tag[start..end], &tag[..start], &tag[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tags_change() {
        let check = |input: &str, expected: &str| assert_eq!(make_transparent(input), expected);
        check("a{% generation %}b{% endgeneration %}c", "a{% if true %}b{% endif %}c");
        check("{%- generation -%}\nx{%- endgeneration -%}", "{%- if true -%}\nx{%- endif -%}");
        check("{%generation%}", "{%if true%}");
        check("{# {% generation %} #}", "{# {% generation %} #}");
        check("{% raw %}{% generation %}{% endraw %}", "{% raw %}{% generation %}{% endraw %}");
        check("{% if generation %}{{ generation }}{% endif %}", "{% if generation %}{{ generation }}{% endif %}");
        check("{% unclosed", "{% unclosed");
        check("{%}{#}{%", "{%}{#}{%");
        check("{%}{% generation %}", "{%}{% generation %}");
        check("{%%}{%-%}{%é%}", "{%%}{%-%}{%é%}");
        check("{% raw %}{#{% endraw %}{% generation %}", "{% raw %}{#{% endraw %}{% if true %}");
    }
}
