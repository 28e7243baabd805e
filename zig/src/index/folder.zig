//! The folder of a build: who may build there, and what a build that ends early takes away again.
const std = @import("std");
const layout = @import("layout");
const diagnostics = @import("diagnostic.zig");
const work = @import("work.zig");
const files = @import("files.zig");
const resume_room = @import("resume.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

/// Stands in a folder under construction, locked by the process that builds.
pub const marker_name = "building";

pub const index_names = [_][]const u8{ files.file_codes, files.file_links, files.file_pages, files.file_page_starts, files.file_page_codes, files.file_vectors };
/// Only needed until the files of the index are written.
pub const large_work_names = [_][]const u8{
    work.codes_name,
    work.points_name,
    work.vectors_name,
    resume_room.graph_name,
    resume_room.graph_name ++ ".tmp",
    work.parts_name,
    work.lists_name,
    work.placed_lists_name,
    work.placed_codes_name,
};
pub const small_work_names = [_][]const u8{
    resume_room.encode_name,
    resume_room.parts_name,
    resume_room.placement_name,
    resume_room.written_name,
    resume_room.encode_name ++ ".tmp",
    resume_room.parts_name ++ ".tmp",
    resume_room.placement_name ++ ".tmp",
    resume_room.written_name ++ ".tmp",
};

pub fn remove(dir: std.fs.Dir, names: []const []const u8) void {
    for (names) |name| dir.deleteFile(name) catch {};
}

pub const Folder = struct {
    dir: std.fs.Dir,
    made: bool,
    marker: std.fs.File,
    /// The marker of a killed build stood there.
    taken_over: bool,
    /// An index is there, of a build that was killed after its manifest: only a build of the same rows goes on with it.
    complete: bool,
};

pub fn claim(path: []const u8, overwrite: bool, diagnostic: *Diagnostic) Error!Folder {
    var made = true;
    std.fs.cwd().makeDir(path) catch |err| switch (err) {
        error.PathAlreadyExists => made = false,
        error.FileNotFound, error.NotDir => {
            diagnostic.argument = "path";
            diagnostic.say("cannot create {s}: its parent folder does not exist", .{path});
            return error.InvalidArgument;
        },
        else => {
            const failure = diagnostics.file_error(diagnostic, path, "create", err);
            diagnostic.argument = "path";
            return failure;
        },
    };
    errdefer if (made) std.fs.cwd().deleteDir(path) catch {};
    var dir = std.fs.cwd().openDir(path, .{ .iterate = true }) catch |err| return diagnostics.file_error(diagnostic, path, "open", err);
    errdefer dir.close();
    const had_marker = exists(dir, marker_name);
    const had_manifest = exists(dir, layout.manifest.file_name);
    var iterator = dir.iterate();
    const empty = (iterator.next() catch |err| return diagnostics.file_error(diagnostic, path, "list", err)) == null;
    const complete = had_manifest and had_marker and !overwrite;
    if (had_manifest and !overwrite and !complete) {
        diagnostic.argument = "path";
        diagnostic.say("{s} already holds an index; overwrite=True or --overwrite replaces it", .{path});
        return error.Exists;
    }
    if (!had_manifest and !had_marker and !empty) {
        diagnostic.argument = "path";
        diagnostic.say("{s} holds files that are not an index", .{path});
        return error.Exists;
    }
    // The lock ends with its process: a killed build's folder can be taken over, a living one's cannot.
    const marker = dir.createFile(marker_name, .{ .truncate = false, .lock = .exclusive, .lock_nonblocking = true }) catch |err| switch (err) {
        error.WouldBlock => {
            diagnostic.argument = "path";
            diagnostic.say("another build is at work in {s}", .{path});
            return error.Exists;
        },
        else => return diagnostics.file_error(diagnostic, marker_name, "create", err),
    };
    errdefer marker.close();
    // Between the look and the lock another build may have come to its end, and taken its marker away.
    if (!same_file(dir, marker) or (!overwrite and !complete and exists(dir, layout.manifest.file_name))) {
        diagnostic.argument = "path";
        diagnostic.say("another build has just ended in {s}", .{path});
        return error.Exists;
    }
    if (had_manifest and !complete) dir.deleteFile(layout.manifest.file_name) catch |err|
        return diagnostics.file_error(diagnostic, layout.manifest.file_name, "remove", err);
    return .{ .dir = dir, .made = made or had_marker, .marker = marker, .taken_over = had_marker, .complete = complete };
}

fn same_file(dir: std.fs.Dir, marker: std.fs.File) bool {
    const named = dir.statFile(marker_name) catch return false;
    const held = marker.stat() catch return false;
    return named.inode == held.inode;
}

pub fn exists(dir: std.fs.Dir, name: []const u8) bool {
    dir.access(name, .{}) catch return false;
    return true;
}
