//! Functions fit a screen. Rust is parsed; elsewhere the layout of a formatted file decides.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::files::File;
use crate::{FUNCTION_LINES_MAX, STEP_BUDGET};

/// One function with a body.
#[derive(Debug)]
pub(crate) struct Function {
    /// Its name.
    pub(crate) name: String,
    /// Line of its `fn`, counted from 1.
    pub(crate) line: usize,
    /// Lines from there to its last.
    pub(crate) lines: usize,
    /// Whether it is a test that does not run by itself.
    pub(crate) is_ignored: bool,
}

pub(crate) fn violations(file: &File) -> Vec<String> {
    let functions = match of(file) {
        Ok(functions) => functions,
        Err(violation) => return vec![violation],
    };
    let mut found: Vec<_> = functions
        .iter()
        .filter(|function| function.lines > FUNCTION_LINES_MAX)
        .map(|f| {
            let text = format!("{} has {} lines, at most {FUNCTION_LINES_MAX}", f.name, f.lines);
            file.violation(f.line, text)
        })
        .collect();
    found.extend(step_budget(file, &functions));
    found
}

/// All functions of a source file.
pub(crate) fn of(file: &File) -> Result<Vec<Function>, String> {
    match file.extension() {
        "rs" => in_rust(file),
        "py" => Ok(in_python(&file.text)),
        "cu" | "sh" => Ok(in_braces(&file.text)),
        _ => Ok(Vec::new()),
    }
}

/// The step reads top to bottom on one screen.
fn step_budget(file: &File, functions: &[Function]) -> Vec<String> {
    let (path, file_lines_max, name, lines_max) = STEP_BUDGET;
    let mut found = Vec::new();
    if file.path != path {
        return found;
    }
    let file_lines = file.text.lines().count();
    if file_lines > file_lines_max {
        found.push(file.violation(1, format!("{file_lines} lines, at most {file_lines_max}")));
    }
    for f in functions.iter().filter(|f| f.name == name && f.lines > lines_max) {
        found.push(file.violation(f.line, format!("{name} has {} lines, {lines_max}", f.lines)));
    }
    found
}

fn in_rust(file: &File) -> Result<Vec<Function>, String> {
    let parsed = syn::parse_file(&file.text).map_err(|error| {
        file.violation(error.span().start().line, format!("cannot be parsed: {error}"))
    })?;
    let mut collector = Collector::default();
    collector.visit_file(&parsed);
    Ok(collector.functions)
}

#[derive(Debug, Default)]
struct Collector {
    functions: Vec<Function>,
}

impl Collector {
    fn add(&mut self, attributes: &[syn::Attribute], sig: &syn::Signature, block: &syn::Block) {
        let line = sig.fn_token.span.start().line;
        self.functions.push(Function {
            name: sig.ident.to_string(),
            line,
            lines: block.span().end().line - line + 1,
            is_ignored: attributes.iter().any(|a| a.path().is_ident("ignore")),
        });
    }
}

impl<'ast> Visit<'ast> for Collector {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.attrs, &item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.attrs, &item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.add(&item.attrs, &item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

/// From a line at column 0 that ends with an opening brace to the next `}` at column 0.
fn in_braces(text: &str) -> Vec<Function> {
    let mut functions = Vec::new();
    let mut open: Option<(String, usize)> = None;
    for (i, line) in text.lines().enumerate() {
        if open.is_none() && line.ends_with('{') && !line.starts_with([' ', '}']) {
            let name = line.split('(').next().and_then(|head| head.split_whitespace().last());
            open = Some((name.unwrap_or("block").to_owned(), i));
        } else if line.starts_with('}')
            && let Some((name, start)) = open.take()
        {
            functions.push(Function {
                name,
                line: start + 1,
                lines: i - start + 1,
                is_ignored: false,
            });
        }
    }
    functions
}

/// From a `def` to the last line that is indented deeper.
fn in_python(text: &str) -> Vec<Function> {
    let lines: Vec<_> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut functions = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(rest) = line.trim_start().strip_prefix("def ") else { continue };
        let ends_at = |next: &&str| {
            !next.trim().is_empty() && indent(next) <= indent(line) && !next.trim().starts_with(')')
        };
        let after = &lines[start + 1..];
        let body = after.iter().position(ends_at).unwrap_or(after.len());
        let blank = after[..body].iter().rev().take_while(|next| next.trim().is_empty()).count();
        let name = rest.split('(').next().unwrap_or(rest).to_owned();
        let lines = body - blank + 1;
        functions.push(Function { name, line: start + 1, lines, is_ignored: false });
    }
    functions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, lines: usize) -> String {
        format!("fn {name}() {{\n{}}}\n", "    a();\n".repeat(lines - 2))
    }

    #[test]
    fn long_functions_are_found_wherever_they_hide() {
        let long = function("long", FUNCTION_LINES_MAX + 1);
        for text in [
            long.clone(),
            format!("impl A {{\n{long}}}\n"),
            format!("trait A {{\n{long}}}\n"),
            format!("mod a {{ mod b {{\n{long}}} }}\n"),
        ] {
            assert_eq!(violations(&File::sample("a.rs", &text)).len(), 1, "{text}");
        }
        let doc = "/// a\n".repeat(80);
        let fits = format!("{doc}{}", function("fits", FUNCTION_LINES_MAX));
        assert_eq!(violations(&File::sample("a.rs", &fits)).len(), 0);
    }

    #[test]
    fn what_cannot_be_parsed_is_a_violation() {
        assert_eq!(violations(&File::sample("a.rs", "fn a( {")).len(), 1);
    }

    #[test]
    fn long_functions_of_other_languages_are_found() {
        let body = "    a b\n".repeat(FUNCTION_LINES_MAX);
        let samples = [
            ("a.sh", format!("install() {{\n{body}}}\n")),
            ("a.cu", format!("extern \"C\" __global__ void add(int a) {{\n{body}}}\n")),
            (
                "a.py",
                format!(
                    "class A:\n    def a(\n        b,\n    ):\n{}",
                    body.replace("    ", "        ")
                ),
            ),
        ];
        for (path, text) in samples {
            let found = violations(&File::sample(path, &text));
            assert_eq!(found.len(), 1, "{path}: {found:?}");
        }
        let two = "a() {\n  b\n}\nc() {\n  d\n}\n";
        assert_eq!(in_braces(two).iter().map(|f| f.lines).collect::<Vec<_>>(), [3, 3]);
        let two = "def a():\n    b\n\n\ndef c():\n    d\n";
        assert_eq!(in_python(two).iter().map(|f| f.lines).collect::<Vec<_>>(), [2, 2]);
    }

    #[test]
    fn the_step_has_a_budget_of_its_own() {
        let (path, file_lines_max, name, lines_max) = STEP_BUDGET;
        let text = function(name, lines_max + 1) + &"// a\n".repeat(file_lines_max);
        assert_eq!(violations(&File::sample(path, &text)).len(), 2);
        assert_eq!(violations(&File::sample("trainer/src/other.rs", &text)).len(), 0);
    }
}
