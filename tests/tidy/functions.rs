//! Functions of a source file. Rust is parsed; other languages are read by their layout, as a
//! formatter leaves it.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::files::File;

/// Function with a body.
#[derive(Debug)]
pub(crate) struct Function {
    /// Name of the function.
    pub(crate) name: String,
    /// Line of its `fn`, counted from 1.
    pub(crate) line: usize,
    /// Lines from there to its last.
    pub(crate) lines: usize,
    /// Set if it has `#[ignore]`.
    pub(crate) is_ignored: bool,
}

/// All functions of a source file.
///
/// # Errors
/// A violation, where Rust cannot be parsed.
pub(crate) fn of(file: &File) -> Result<Vec<Function>, String> {
    match file.extension() {
        "rs" => in_rust(file),
        "py" => Ok(in_python(&file.text)),
        "cu" | "sh" => Ok(in_braces(&file.text)),
        _ => Ok(Vec::new()),
    }
}

fn in_rust(file: &File) -> Result<Vec<Function>, String> {
    let parsed = parse(file)?;
    let mut collector = Collector::default();
    collector.visit_file(&parsed);
    Ok(collector.functions)
}

/// The syntax tree of a Rust file.
///
/// # Errors
/// A violation, where it cannot be parsed.
pub(crate) fn parse(file: &File) -> Result<syn::File, String> {
    syn::parse_file(&file.text)
        .map_err(|error| file.at(error.span().start().line, format!("cannot be parsed: {error}")))
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

/// Finds functions from a line at column 0 that ends with an opening brace to the next `}` there.
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

/// Finds functions from a `def` to the last line that is indented deeper.
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

    /// Name, first line and number of lines of each function.
    fn found(path: &str, text: &str) -> Vec<(String, usize, usize)> {
        let functions = of(&File::sample(path, text)).unwrap();
        functions.into_iter().map(|f| (f.name, f.line, f.lines)).collect()
    }

    #[test]
    fn functions_are_found_wherever_they_hide() {
        let function = "fn a() {\n    b();\n}\n";
        for (text, line) in [
            (function.to_owned(), 1),
            (format!("/// Doc.\n#[test]\n{function}"), 3),
            (format!("impl A {{\n{function}}}\n"), 2),
            (format!("trait A {{\nfn c();\n{function}}}\n"), 3),
            (format!("mod a {{ mod b {{\n{function}}} }}\n"), 2),
        ] {
            assert_eq!(found("a.rs", &text), [("a".to_owned(), line, 3)], "{text}");
        }
    }

    #[test]
    fn ignored_tests_are_marked() {
        let text = "#[test]\n#[ignore = \"slow\"]\nfn a() {}\n#[test]\nfn b() {}\n";
        let functions = of(&File::sample("a.rs", text)).unwrap();
        assert_eq!(functions.iter().map(|f| f.is_ignored).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn a_file_that_cannot_be_parsed_is_a_violation() {
        let violation = of(&File::sample("a.rs", "fn a( {")).unwrap_err();
        assert!(violation.starts_with("a.rs:1: cannot be parsed"), "{violation}");
    }

    #[test]
    fn functions_of_other_languages_are_found() {
        let function = |name: &str, line, lines| (name.to_owned(), line, lines);
        let two = "a() {\n  b\n}\nc() {\n  d\n}\n";
        assert_eq!(found("a.sh", two), [function("a", 1, 3), function("c", 4, 3)]);
        let two = "def a():\n    b\n\n\ndef c():\n    d\n";
        assert_eq!(found("a.py", two), [function("a", 1, 2), function("c", 5, 2)]);
        let method = "class A:\n    def a(\n        b,\n    ):\n        c\n        d\n";
        assert_eq!(found("a.py", method), [function("a", 2, 5)]);
        let kernel = "extern \"C\" __global__ void add(int a) {\n    b;\n}\n";
        assert_eq!(found("a.cu", kernel), [function("add", 1, 3)]);
    }
}
