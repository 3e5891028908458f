//! Rules about structure: crates use each other along the arrows of the architecture, and no folder
//! of a crate is part of a circle of imports.
//!
//! A circle among files of one folder is that folder's matter. Tests do not count: they may use
//! anything.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

use crate::files::File;

/// Crates with those that they may use, beside `record`, which all may.
const ARROWS: [(&str, &[&str]); 12] = [
    ("record", &[]),
    ("device", &[]),
    ("models", &["device"]),
    ("collectives", &["device"]),
    ("checkpoint", &["device"]),
    ("launch", &["collectives", "device"]),
    ("telemetry", &["device"]),
    ("verdict", &[]),
    ("k8s", &["verdict"]),
    ("trainer", &["checkpoint", "collectives", "device", "launch", "models", "telemetry"]),
    ("trainer/cli", &ALL),
    ("tests/support", &[]),
];

const ALL: [&str; 9] = [
    "checkpoint",
    "collectives",
    "device",
    "k8s",
    "launch",
    "models",
    "telemetry",
    "trainer",
    "verdict",
];

pub(crate) fn violations(files: &[File]) -> Vec<String> {
    let mut found: Vec<String> = files.iter().flat_map(dependencies).collect();
    for (package, _) in ARROWS {
        let source = format!("{package}/src/");
        let own: Vec<_> = files.iter().filter(|file| file.path.starts_with(&source)).collect();
        found.extend(Tree::new(&source, &own).circles());
    }
    found
}

/// Dependencies of a crate that no arrow leads to. What tests depend on is free.
fn dependencies(manifest: &File) -> Vec<String> {
    let Some(package) = manifest.path.strip_suffix("/Cargo.toml") else { return Vec::new() };
    let arrows = ARROWS.iter().find(|(name, _)| *name == package);
    let Some((_, allowed)) = arrows else {
        return vec![manifest.at(1, "is of a crate that tests/tidy/arrows.rs does not know")];
    };
    let mut section = "";
    let mut found = Vec::new();
    for (index, line) in manifest.text.lines().enumerate() {
        if line.starts_with('[') {
            section = line;
        }
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        let is_of_workspace = ALL.contains(&name);
        if section == "[dependencies]" && is_of_workspace && !allowed.contains(&name) {
            found.push(manifest.at(index + 1, format!("{package} must not use {name}")));
        }
    }
    found
}

/// The path of a module or an item within a crate.
type ModulePath = Vec<String>;

/// An import of one module from another.
#[derive(Debug)]
struct Import {
    from: ModulePath,
    to: ModulePath,
}

/// The modules of a crate.
#[derive(Debug, Default)]
struct Tree {
    /// `trainer/src/`.
    source: String,
    modules: BTreeSet<ModulePath>,
    /// Names of other modules that a module re-exports, as `pub use inner::Name`.
    shown: BTreeMap<ModulePath, ModulePath>,
    imports: Vec<Import>,
}

impl Tree {
    fn new(source: &str, files: &[&File]) -> Self {
        let mut tree = Self { source: source.to_owned(), ..Self::default() };
        let modules = files.iter().filter_map(|file| Some((module_of(source, file)?, file)));
        let mut modules: Vec<_> = modules.collect();
        let tests: Vec<ModulePath> =
            modules.iter().flat_map(|(module, file)| modules_of_tests(module, file)).collect();
        modules.retain(|(module, _)| !tests.iter().any(|test| module.starts_with(test)));
        tree.modules.extend(modules.iter().map(|(module, _)| module.clone()));
        for (module, file) in &modules {
            if let Some(parsed) = file.parse() {
                let mut reader = Reader { module: module.clone(), tree: &mut tree };
                reader.visit_file(&parsed);
            }
        }
        tree
    }

    /// Returns each folder that is part of a circle, with the modules of that.
    fn circles(&self) -> Vec<String> {
        let mut edges: BTreeMap<ModulePath, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        for import in &self.imports {
            let to = self.resolve(&import.to);
            let common = import.from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if let (Some(from), Some(into)) = (import.from.get(common), to.get(common)) {
                let of_folder = edges.entry(to[..common].to_vec()).or_default();
                of_folder.entry(from.clone()).or_default().insert(into.clone());
            }
        }
        let circles = edges.iter().flat_map(|(folder, edges)| self.circles_in(folder, edges));
        circles.collect()
    }

    fn circles_in(
        &self,
        folder: &ModulePath,
        edges: &BTreeMap<String, BTreeSet<String>>,
    ) -> Vec<String> {
        let reached: BTreeMap<&String, BTreeSet<&String>> =
            edges.keys().map(|from| (from, reached_from(from, edges))).collect();
        let mut found = Vec::new();
        for (start, others) in &reached {
            let returns = |other: &&&String| {
                *other != start && reached.get(**other).is_some_and(|back| back.contains(start))
            };
            let circle: BTreeSet<&str> = others.iter().filter(returns).map(|it| &***it).collect();
            if !circle.is_empty() && self.is_folder(folder, start) {
                let circle: Vec<_> = circle.into_iter().collect();
                let place = format!("{}{}", self.source, folder.join("/"));
                found.push(format!("{place}:1: {start} is in a circle with {}", circle.join(", ")));
            }
        }
        found
    }

    /// Returns whether a module has modules of its own.
    fn is_folder(&self, folder: &ModulePath, name: &str) -> bool {
        let depth = folder.len();
        self.modules.iter().any(|module| {
            module.len() > depth + 1 && module.starts_with(folder) && module[depth] == name
        })
    }

    /// Returns the module that a path leads to, past re-exports.
    fn resolve(&self, path: &ModulePath) -> ModulePath {
        let mut path = path.clone();
        for _ in 0..8 {
            let shown = (1..=path.len()).find_map(|length| {
                let target = self.shown.get(&path[..length])?;
                Some([target, &path[length..]].concat())
            });
            match shown {
                Some(next) if next != path => path = next,
                _ => break,
            }
        }
        while !path.is_empty() && !self.modules.contains(&path) {
            path.pop();
        }
        path
    }
}

fn reached_from<'a>(
    start: &'a String,
    edges: &'a BTreeMap<String, BTreeSet<String>>,
) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut next = vec![start];
    while let Some(module) = next.pop() {
        for to in edges.get(module).into_iter().flatten() {
            if reached.insert(to) {
                next.push(to);
            }
        }
    }
    reached
}

/// `None` for a file of no module.
fn module_of(source: &str, file: &File) -> Option<ModulePath> {
    let path = file.path.strip_prefix(source)?.strip_suffix(".rs")?;
    let mut module: ModulePath = path.split('/').map(str::to_owned).collect();
    if ["mod", "lib", "main"].contains(&module.last()?.as_str()) {
        module.pop();
    }
    Some(module)
}

/// Modules that a file declares for its tests.
fn modules_of_tests(module: &ModulePath, file: &File) -> Vec<ModulePath> {
    let items = file.parse().map(|parsed| parsed.items).unwrap_or_default();
    let name = |item: &Item| match item {
        Item::Mod(inner) if is_of_tests(&inner.attrs) => Some(inner.ident.to_string()),
        _ => None,
    };
    items.iter().filter_map(name).map(|name| [&module[..], &[name]].concat()).collect()
}

/// Reads the imports of one module.
struct Reader<'a> {
    /// Module being read, also one inside of the file.
    module: ModulePath,
    tree: &'a mut Tree,
}

impl Reader<'_> {
    /// The path from the top of the crate; `None` for one of another crate.
    fn absolute(&self, path: &[String]) -> Option<ModulePath> {
        let mut base = match path.first()?.as_str() {
            "crate" => Vec::new(),
            "self" => self.module.clone(),
            "super" => {
                let ups = path.iter().take_while(|name| *name == "super").count();
                let kept = self.module.len().checked_sub(ups)?;
                return Some([&self.module[..kept], &path[ups..]].concat());
            }
            child => {
                let module = [&self.module[..], &[child.to_owned()]].concat();
                return self
                    .tree
                    .modules
                    .contains(&module)
                    .then(|| [&self.module[..], path].concat());
            }
        };
        base.extend_from_slice(&path[1..]);
        Some(base)
    }

    fn import(&mut self, path: &[String]) {
        if let Some(to) = self.absolute(path) {
            let from = self.module.clone();
            self.tree.imports.push(Import { from, to });
        }
    }

    fn read_use(&mut self, tree: &UseTree, mut path: Vec<String>, is_shown: bool) {
        let mut leaf = |path: &[String], name: String| {
            self.import(path);
            if is_shown && let Some(target) = self.absolute(path) {
                let shown = [&self.module[..], &[name]].concat();
                self.tree.shown.insert(shown, target);
            }
        };
        match tree {
            UseTree::Path(inner) => {
                path.push(inner.ident.to_string());
                self.read_use(&inner.tree, path, is_shown);
            }
            UseTree::Name(name) => {
                path.push(name.ident.to_string());
                leaf(&path, name.ident.to_string());
            }
            UseTree::Rename(renamed) => {
                path.push(renamed.ident.to_string());
                leaf(&path, renamed.rename.to_string());
            }
            UseTree::Glob(_) => self.import(&path),
            UseTree::Group(group) => {
                group.items.iter().for_each(|item| self.read_use(item, path.clone(), is_shown));
            }
        }
    }
}

fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_named = attribute.path().is_ident("cfg");
        is_named
            && attribute.meta.require_list().is_ok_and(|list| {
                let text = list.tokens.to_string();
                text == "test" || text.contains("\"fixtures\"")
            })
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_of_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let is_shown = !matches!(item.vis, Visibility::Inherited);
        self.read_use(&item.tree, Vec::new(), is_shown);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if names.len() > 1 && ["crate", "super"].contains(&names[0].as_str()) {
            self.import(&names);
        }
        visit::visit_path(self, path);
    }
}

mod tests {
    use super::*;

    #[test]
    fn an_arrow_that_is_not_drawn_is_found() {
        let text = "[dependencies]\nrecord.workspace = true\nmodels = { workspace = true }\n\
                    [dev-dependencies]\nk8s.workspace = true\n";
        let found = dependencies(&File::sample("launch/Cargo.toml", text));
        assert_eq!(found, ["launch/Cargo.toml:3: launch must not use models"]);
        assert_eq!(dependencies(&File::sample("trainer/cli/Cargo.toml", text)).len(), 0);
        assert_eq!(dependencies(&File::sample("news/Cargo.toml", text)).len(), 1);
    }

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(path, text)| File::sample(path, text)).collect();
        Tree::new("a/src/", &files.iter().collect::<Vec<_>>()).circles()
    }

    #[test]
    fn a_circle_that_a_folder_is_part_of_is_found() {
        let found = circles(&[
            ("a/src/lib.rs", "mod one; mod two; pub use two::Item;"),
            ("a/src/one/mod.rs", "mod inner;"),
            ("a/src/one/inner.rs", "use crate::Item;"),
            ("a/src/two.rs", "fn f() { crate::one::inner::g() } pub struct Item;"),
        ]);
        assert_eq!(found, ["a/src/:1: one is in a circle with two"]);
    }

    #[test]
    fn files_of_one_folder_and_tests_may_know_each_other() {
        let found = circles(&[
            ("a/src/lib.rs", "mod one; mod two; mod three;"),
            ("a/src/one.rs", "use super::two::Two; #[cfg(test)] mod tests;"),
            ("a/src/two.rs", "use crate::one::One;"),
            ("a/src/three/mod.rs", "mod inner; use crate::one;"),
            ("a/src/three/inner.rs", "use super::super::two;"),
            ("a/src/one/tests.rs", "use crate::three;"),
        ]);
        assert_eq!(found, [""; 0]);
        let in_tests = "#[cfg(test)]\nmod tests { use crate::three::inner; }";
        let found = circles(&[
            ("a/src/one.rs", in_tests),
            ("a/src/three/mod.rs", "mod inner; use crate::one;"),
            ("a/src/three/inner.rs", ""),
        ]);
        assert_eq!(found, [""; 0]);
    }
}
