//! Files in which AWS's own tools keep credentials and settings; object_store does not read them. A
//! setting that this module cannot use is refused: without it, requests would go to AWS.
//!
//! <https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html>

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use object_store::aws::AmazonS3ConfigKey::{
    self, AccessKeyId, DefaultRegion, Endpoint, Region, S3Endpoint, SecretAccessKey, SkipSignature,
    Token, WebIdentityTokenFile,
};

use super::ini::{self, Section};
use super::settings::{Setting, Variables, invalid, may_be_shown};

type Settings = Vec<Setting<AmazonS3ConfigKey>>;

/// Sources of credentials that precede a key pair in the files, or follow one in `credentials`.
const BEFORE_KEYS: [&str; 5] =
    ["role_arn", "web_identity_token_file", "sso_session", "sso_account_id", "sso_role_name"];
const AFTER_KEYS: [&str; 2] = ["login_session", "credential_process"];

/// Adds to the settings of the environment what the profile `AWS_PROFILE`, or `default`, has for
/// those that are not there.
///
/// # Errors
/// When a file cannot be read, or the profile is not in one, or has what this cannot use.
pub(super) fn complete(settings: &mut Settings, variables: Variables<'_>) -> io::Result<()> {
    let needs_credentials =
        !has(settings, &[AccessKeyId, WebIdentityTokenFile]) && !is_anonymous(settings);
    let needs_endpoint = !has(settings, &[Endpoint, S3Endpoint]);
    let needs_region = !has(settings, &[Region, DefaultRegion]);
    let profile = if needs_credentials || needs_endpoint || needs_region {
        Profile::read(variables)?
    } else {
        Profile::default()
    };
    if needs_credentials && let Some(keys) = profile.credentials()? {
        // A pair is taken as a whole from one place: half of it from here would be of another user.
        settings.retain(|set| !matches!(set.key, SecretAccessKey | Token));
        settings.extend(keys);
    }
    if needs_endpoint {
        settings.extend(profile.endpoint()?);
    }
    if needs_region {
        settings.extend(profile.setting(Region, "region")?);
    }
    let ignores_endpoints = match variables.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")? {
        Some(value) => value.eq_ignore_ascii_case("true"),
        None => profile.is_true("ignore_configured_endpoint_urls"),
    };
    if ignores_endpoints {
        settings.retain(|set| !matches!(set.key, Endpoint | S3Endpoint));
    }
    Ok(())
}

pub(super) fn has(settings: &Settings, keys: &[AmazonS3ConfigKey]) -> bool {
    settings.iter().any(|setting| keys.contains(&setting.key))
}

/// Returns whether requests are not signed. A value that is no boolean is refused when the client
/// is made.
///
/// <https://docs.rs/object_store/0.14.2/src/object_store/config.rs.html>
pub(super) fn is_anonymous(settings: &Settings) -> bool {
    let last = settings.iter().rfind(|setting| setting.key == SkipSignature);
    let names = ["1", "true", "on", "yes", "y"];
    last.is_some_and(|set| names.contains(&&*set.value.to_ascii_lowercase()))
}

/// A file, of which nothing is there if it is not.
#[derive(Debug, Default)]
struct File {
    path: PathBuf,
    sections: BTreeMap<String, Section>,
}

impl File {
    fn read(variables: Variables<'_>, variable: &str, name: &str) -> io::Result<Self> {
        let named = variables.get(variable)?;
        let Some(path) = path(named.as_deref(), name) else { return Ok(Self::default()) };
        if !path.is_file() {
            if named.is_some_and(|path| path.contains('$')) {
                return Err(invalid(variable, "expected a path without variables, found a $"));
            }
            return Ok(Self { path, ..Self::default() });
        }
        let at = path.display();
        let text = fs::read_to_string(&path);
        let text = text.map_err(|error| io::Error::new(error.kind(), format!("{at}: {error}")))?;
        let sections = ini::parse(&text).map_err(|what| invalid(&at.to_string(), &what))?;
        Ok(Self { path, sections })
    }

    /// The section with this title, or with a title of these words.
    fn section(&self, title: Option<&str>, kind: &str, name: &str) -> Option<&Section> {
        let is_meant = |found: &str| {
            Some(found) == title || ini::words(found).is_some_and(|words| words == [kind, name])
        };
        self.sections.iter().find_map(|(found, section)| is_meant(found).then_some(section))
    }
}

/// Returns the path of a file as AWS's tools do: `~` is the user's home.
fn path(named: Option<&str>, name: &str) -> Option<PathBuf> {
    let home = env::home_dir();
    match named {
        Some(named) => match (named.strip_prefix("~/"), home) {
            (Some(rest), Some(home)) => Some(home.join(rest)),
            _ => Some(named.into()),
        },
        None => Some(home?.join(".aws").join(name)),
    }
}

/// Sections of a profile. Settings in `credentials` take precedence.
#[derive(Debug, Default)]
struct Profile {
    name: String,
    config: File,
    credentials: File,
}

impl Profile {
    fn read(variables: Variables<'_>) -> io::Result<Self> {
        let named = named(variables)?;
        let config = File::read(variables, "AWS_CONFIG_FILE", "config")?;
        let credentials = File::read(variables, "AWS_SHARED_CREDENTIALS_FILE", "credentials")?;
        let (variable, name) = named.unzip();
        let name = name.unwrap_or_else(|| "default".to_owned());
        let profile = Self { name, config, credentials };
        match variable {
            Some(variable) if profile.sections().next().is_none() => {
                let Self { name, config, credentials } = &profile;
                let [config, credentials] = [config, credentials].map(|file| file.path.display());
                let name = if may_be_shown(name) { &format!("{name:?}") } else { "another name" };
                let what = format!("expected a profile of {config} or {credentials}, found {name}");
                Err(invalid(variable, &what))
            }
            _ => Ok(profile),
        }
    }

    fn sections(&self) -> impl Iterator<Item = (&Section, &Path)> {
        [&self.credentials, &self.config].into_iter().filter_map(|file| {
            let section = file.section(Some(&self.name), "profile", &self.name)?;
            Some((section, &*file.path))
        })
    }

    fn find(&self, name: &str) -> Option<(&str, &Path)> {
        self.sections().find_map(|(section, path)| Some((&*section.get(name)?.text, path)))
    }

    fn is_true(&self, name: &str) -> bool {
        self.find(name).is_some_and(|(value, _)| value.eq_ignore_ascii_case("true"))
    }

    fn setting(
        &self,
        key: AmazonS3ConfigKey,
        name: &str,
    ) -> io::Result<Option<Setting<AmazonS3ConfigKey>>> {
        let Some((value, path)) = self.find(name) else { return Ok(None) };
        Setting::new(key, value, self.origin(name, path))
    }

    fn origin(&self, name: &str, path: &Path) -> String {
        format!("{name} of the profile {:?} in {}", self.name, path.display())
    }

    /// The endpoint of S3 in `services`, or the profile's.
    fn endpoint(&self) -> io::Result<Option<Setting<AmazonS3ConfigKey>>> {
        if let Some((services, path)) = self.find("services") {
            let file = self.config.path.display();
            let section = self.config.section(None, "services", services).ok_or_else(|| {
                let name = if may_be_shown(services) { services } else { "NAME" };
                let what = format!("expected a section [services {name}] in {file}");
                invalid(&self.origin("services", path), &what)
            })?;
            let origin = format!("s3 of [services {services}] in {file}");
            if let Some(endpoint) = s3_endpoint(section, &origin)? {
                return Ok(Some(endpoint));
            }
        }
        if let Some(endpoint) = self.setting(Endpoint, "endpoint_url")? {
            return Ok(Some(endpoint));
        }
        // Not the tools', but that of a plugin for them.
        for (section, path) in self.sections() {
            if let Some(endpoint) = s3_endpoint(section, &self.origin("s3", path))? {
                return Ok(Some(endpoint));
            }
        }
        Ok(None)
    }

    /// The key pair. The tools prefer that of `credentials`.
    fn credentials(&self) -> io::Result<Option<Settings>> {
        self.refuse(&BEFORE_KEYS)?;
        let mut with_keys =
            self.sections().filter(|(section, _)| section.contains_key("aws_access_key_id"));
        let found = with_keys.next();
        if found.is_none_or(|(_, path)| path != self.credentials.path) {
            self.refuse(&AFTER_KEYS)?;
        }
        let Some((section, path)) = found else { return Ok(None) };
        let names = [
            (AccessKeyId, "aws_access_key_id"),
            (SecretAccessKey, "aws_secret_access_key"),
            (Token, "aws_security_token"),
            (Token, "aws_session_token"),
        ];
        let settings = names.into_iter().filter_map(|(key, name)| {
            let value = section.get(name)?;
            Setting::new(key, &value.text, self.origin(name, path)).transpose()
        });
        settings.collect::<io::Result<_>>().map(Some)
    }

    fn refuse(&self, names: &[&str]) -> io::Result<()> {
        let Some((name, (_, path))) = names.iter().find_map(|name| Some((name, self.find(name)?)))
        else {
            return Ok(());
        };
        let what = "not supported; expected aws_access_key_id and aws_secret_access_key, or in the \
                    environment what `aws configure export-credentials --format env` prints";
        Err(invalid(&self.origin(name, path), what))
    }
}

/// Returns the profile that a variable names, and that variable. The SDKs and version 2 of AWS's
/// command line read `AWS_PROFILE` first, boto3 the other one (`configprovider.py` of
/// <https://github.com/boto/botocore>): where both are set, they must be equal.
fn named(variables: Variables<'_>) -> io::Result<Option<(&'static str, String)>> {
    const NAMES: [&str; 2] = ["AWS_PROFILE", "AWS_DEFAULT_PROFILE"];
    match NAMES.map(|name| variables.get(name)) {
        [Err(error), _] | [_, Err(error)] => Err(error),
        [Ok(Some(first)), Ok(Some(second))] if first != second => {
            let what = "they name different profiles, of which some tools take the first and \
                        others the second; unset one";
            Err(invalid(&NAMES.join(" and "), what))
        }
        [Ok(first), Ok(second)] => {
            let first = first.map(|name| (NAMES[0], name));
            Ok(first.or(second.map(|name| (NAMES[1], name))))
        }
    }
}

/// The endpoint in the nested value `s3` of a section.
fn s3_endpoint(section: &Section, origin: &str) -> io::Result<Option<Setting<AmazonS3ConfigKey>>> {
    let Some(s3) = section.get("s3") else { return Ok(None) };
    let nested = s3.nested().map_err(|number| {
        invalid(origin, &format!("line {number}: expected NAME = VALUE, found another form"))
    })?;
    match nested.get("endpoint_url") {
        Some(url) => Setting::new(Endpoint, url, format!("endpoint_url for {origin}")),
        None => Ok(None),
    }
}
