//! No two modules of `src` import each other, directly or through others, except a parent and its children; and no two
//! rooms, the modules that `main.rs` names with all that is below them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree};

/// A module path below the crate root, such as `["store", "redis", "queue"]`; empty for `main.rs`.
type Module = Vec<String>;

/// The paths that one file imports or names.
#[derive(Default)]
struct Paths {
    /// Each path as written, and whether it is re-exported.
    written: Vec<(Vec<String>, bool)>,
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Mod(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if let Item::Use(item) = item {
            let is_public = !matches!(item.vis, syn::Visibility::Inherited);
            if !is_for_tests(attributes) {
                self.tree(Vec::new(), &item.tree, is_public);
            }
        } else if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if matches!(words[0].as_str(), "crate" | "super" | "self") {
            self.written.push((words, false));
        }
        visit::visit_path(self, path);
    }
}

impl Paths {
    fn tree(&mut self, mut before: Vec<String>, tree: &UseTree, is_public: bool) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.tree(before, &path.tree, is_public);
            }
            UseTree::Name(name) if name.ident == "self" => self.written.push((before, is_public)),
            UseTree::Name(name) => {
                before.push(name.ident.to_string());
                self.written.push((before, is_public));
            }
            UseTree::Rename(rename) => {
                before.push(rename.ident.to_string());
                self.written.push((before, is_public));
            }
            UseTree::Glob(_) => self.written.push((before, is_public)),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(before.clone(), tree, is_public)),
        }
    }
}

/// Returns whether an item is compiled only for unit tests or fuzz targets.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = attribute.parse_args::<syn::Ident>();
        attribute.path().is_ident("cfg") && condition.is_ok_and(|name| name == "test" || name == "fuzzing")
    })
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        match entry.path() {
            path if path.is_dir() => sources(&path, found),
            path if path.extension().is_some_and(|extension| extension == "rs") => found.push(path),
            _ => {}
        }
    }
}

/// Returns the files of `src` as modules, without those compiled only for tests.
fn modules() -> BTreeMap<Module, Paths> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut modules = BTreeMap::new();
    for file in files {
        let below = file.strip_prefix(&root).unwrap().with_extension("");
        let mut module: Module = below.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
        if module == ["main"] {
            module.clear();
        }
        let is_for_tests = module.starts_with(&["cli".into(), "docs".into()]) || module == ["fuzzed"];
        if !is_for_tests {
            let mut paths = Paths::default();
            paths.visit_file(&syn::parse_file(&fs::read_to_string(&file).unwrap()).unwrap());
            modules.insert(module, paths);
        }
    }
    modules
}

/// Resolves a path written in a module to one from the crate root; returns nothing for a path of another crate.
fn absolute(module: &Module, written: &[String], modules: &BTreeMap<Module, Paths>) -> Option<Module> {
    let supers = written.iter().take_while(|word| *word == "super").count();
    match written[0].as_str() {
        "crate" => Some(written[1..].to_vec()),
        "self" => Some([module, &written[1..]].concat()),
        "super" => Some([&module[..module.len() - supers], &written[supers..]].concat()),
        child => {
            let is_child = modules.contains_key(&[module.as_slice(), &[child.to_owned()]].concat());
            is_child.then(|| [module.as_slice(), written].concat())
        }
    }
}

/// Returns the module that defines what a path names, following re-exports.
fn defined_in(path: &Module, modules: &BTreeMap<Module, Paths>) -> Module {
    let at = (0..=path.len()).rev().find(|at| modules.contains_key(&path[..*at])).unwrap();
    let (module, rest) = (path[..at].to_vec(), &path[at..]);
    let Some(name) = rest.first() else { return module };
    let exports = modules[&module].written.iter().filter(|(_, is_public)| *is_public);
    let target = exports.filter(|(written, _)| written.last() == Some(name));
    let target = target.filter_map(|(written, _)| absolute(&module, written, modules)).find(|target| target != path);
    target.map_or(module, |target| defined_in(&target, modules))
}

/// Returns the modules that each module imports.
fn imports(modules: &BTreeMap<Module, Paths>) -> BTreeMap<Module, BTreeSet<Module>> {
    let of = |(module, paths): (&Module, &Paths)| {
        let own = |target: &Module| target.starts_with(module);
        let written = paths.written.iter().filter_map(|(written, is_public)| {
            let target = absolute(module, written, modules)?;
            // Re-exporting a child's name is no import of it.
            (!(*is_public && own(&target))).then(|| defined_in(&target, modules))
        });
        (module.clone(), written.filter(|target| target != module).collect())
    };
    modules.iter().map(of).collect()
}

/// Returns all modules that a module imports, directly or through others.
fn reached(from: &Module, imports: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<Module> {
    let mut found = BTreeSet::new();
    let mut next = vec![from.clone()];
    while let Some(module) = next.pop() {
        next.extend(imports[&module].iter().filter(|target| found.insert((*target).clone())).cloned());
    }
    found
}

/// Returns the import cycles, each as the set of its modules, largest first.
fn circles(imports: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<BTreeSet<Module>> {
    let reached: BTreeMap<&Module, BTreeSet<Module>> = imports.keys().map(|one| (one, reached(one, imports))).collect();
    let circle = |one: &Module| -> BTreeSet<Module> {
        reached[one].iter().filter(|other| reached[*other].contains(one)).cloned().collect()
    };
    let circles: BTreeSet<BTreeSet<Module>> = imports.keys().map(circle).filter(|circle| circle.len() > 1).collect();
    let mut circles: Vec<_> = circles.into_iter().collect();
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

#[test]
fn only_a_parent_and_its_children_import_each_other() {
    let modules = modules();
    assert!(modules.len() > 80, "src was found");
    let mut imports = imports(&modules);
    for circle in circles(&imports) {
        let parent = circle.iter().min_by_key(|module| module.len()).unwrap();
        let is_family = circle.iter().all(|module| module.starts_with(parent));
        assert!(is_family, "these import each other, and are no parent with its children: {circle:?}");
    }
    // Nor do children of one parent import each other.
    for (module, targets) in &mut imports {
        targets.retain(|target| !target.starts_with(module));
    }
    assert_eq!(circles(&imports), [], "these import each other");
}

#[test]
fn no_two_rooms_import_each_other() {
    let mut rooms: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (module, targets) in imports(&modules()).iter().filter(|(module, _)| !module.is_empty()) {
        let room = |module: &Module| module[..1].to_vec();
        let others = targets.iter().filter(|target| !target.is_empty()).map(room);
        rooms.entry(room(module)).or_default().extend(others.filter(|other| *other != module[..1]));
    }
    assert!(rooms.len() > 30, "the rooms were found");
    assert_eq!(circles(&rooms), [], "these rooms import each other");
}
