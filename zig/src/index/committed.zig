//! Operations on an index that is complete: verification, and other files or another calibration in its manifest.
const std = @import("std");
const layout = @import("layout");
const reader = @import("reader.zig");
const files = @import("files.zig");
const diagnostics = @import("diagnostic.zig");
const PageWalk = reader.PageWalk;
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;
const adjacency = layout.adjacency;

// ---- verification ----
//
// Every file of an index is read whole: sums against the manifest, every page, every list.

pub fn verify(allocator: std.mem.Allocator, path: []const u8, pages_checked: *u64, diagnostic: *Diagnostic) Error!void {
    pages_checked.* = 0;
    var opened = try reader.Reader.open(allocator, path, .{ .codes = false, .links = .on_disk }, diagnostic);
    defer opened.deinit();
    const n = opened.n();
    try opened.check_codes_and_links(diagnostic);
    try check_pages(allocator, &opened, pages_checked, diagnostic);
    if (opened.vectors) |*vectors| {
        const page = try allocator.alloc(u8, vectors.geometry.page_size);
        defer allocator.free(page);
        for (0..@intCast(vectors.geometry.page_count(n))) |i| {
            try vectors.read_page(@intCast(i), page, diagnostic);
            pages_checked.* += 1;
        }
    }
    for ([_][]const u8{ files.file_pages, files.file_page_codes, files.file_vectors }) |name| {
        if (opened.manifest().file(name)) |file| try files.check_file(allocator, opened.dir, file, diagnostic);
    }
}

fn check_pages(allocator: std.mem.Allocator, opened: *const reader.Reader, pages_checked: *u64, diagnostic: *Diagnostic) Error!void {
    var walk = try PageWalk.init(allocator, opened);
    defer walk.deinit();
    var ids: [adjacency.neighbors_max]u32 = undefined;
    while (try walk.next(diagnostic)) |view| {
        if (opened.page_geometry().lists) for (0..view.record_count) |record| {
            _ = try walk.list(&view, @intCast(record), &ids, diagnostic);
        };
        _ = try walk.table(&view, &ids, diagnostic);
        pages_checked.* += 1;
    }
}

// ---- calibration ----

/// Replaces the calibration in the manifest; null takes it out.
pub fn store_calibration(allocator: std.mem.Allocator, path: []const u8, json: ?[]const u8, diagnostic: *Diagnostic) Error!void {
    // Opened to be read, as a folder must be that is to be synced.
    var dir = std.fs.cwd().openDir(path, .{ .iterate = true }) catch |err| return files.open_folder_error(path, err, diagnostic);
    defer dir.close();
    var parsed = try files.read_manifest(allocator, dir, path, diagnostic);
    defer parsed.deinit();
    var manifest = parsed.value;
    manifest.calibration = if (json) |text|
        std.json.parseFromSliceLeaky(layout.manifest.Calibration, parsed.arena.allocator(), text, .{}) catch |err| {
            if (err == error.OutOfMemory) return error.OutOfMemory;
            diagnostic.argument = "calibration_json";
            diagnostic.say("calibration_json is not a calibration: {t}", .{err});
            return error.InvalidArgument;
        }
    else
        null;
    const text = try layout.manifest.write(parsed.arena.allocator(), &manifest);
    try files.replace(dir, layout.manifest.file_name, text, diagnostic);
}

// ---- the caller's files ----
//
// Exchanges the caller's files of a finished index: the manifest that names the new ones takes the old one's place in
// one rename. Pages, codes and links are not touched.

/// The manifest's files that begin with `prefix` give way to `names`, which lie complete in the folder and are synced
/// here; `user_json` takes the place of what the caller kept in the manifest.
pub fn recommit(
    allocator: std.mem.Allocator,
    path: []const u8,
    prefix: []const u8,
    names: []const []const u8,
    user_json: []const u8,
    diagnostic: *Diagnostic,
) Error!void {
    var dir = std.fs.cwd().openDir(path, .{ .iterate = true }) catch |err| return files.open_error(diagnostic, path, err);
    defer dir.close();
    var parsed = try files.read_manifest(allocator, dir, path, diagnostic);
    defer parsed.deinit();
    const arena = parsed.arena.allocator();
    var entries: std.ArrayList(layout.manifest.File) = .empty;
    for (parsed.value.files) |file| {
        if (!std.mem.startsWith(u8, file.name, prefix)) try entries.append(arena, file);
    }
    for (names) |name| {
        if (!std.mem.startsWith(u8, name, prefix) or std.mem.indexOfAny(u8, name, "/\\") != null) {
            diagnostic.argument = "names";
            diagnostic.say("'{s}' is no name of such a file inside the folder", .{name});
            return error.InvalidArgument;
        }
        const file = dir.openFile(name, .{}) catch |err| return diagnostics.file_error(diagnostic, name, "open", err);
        defer file.close();
        file.sync() catch |err| return diagnostics.file_error(diagnostic, name, "sync", err);
        const summary = try files.summarize(allocator, dir, name, diagnostic);
        const sum = try arena.dupe(u8, &layout.manifest.checksum_text(summary.checksum));
        try entries.append(arena, .{ .name = name, .bytes = summary.bytes, .checksum = sum });
    }
    parsed.value.files = entries.items;
    parsed.value.user = std.json.parseFromSliceLeaky(std.json.Value, arena, user_json, .{}) catch {
        diagnostic.argument = "user_json";
        diagnostic.say("user_json is not JSON", .{});
        return error.InvalidArgument;
    };
    const text = try layout.manifest.write(arena, &parsed.value);
    try files.replace(dir, layout.manifest.file_name, text, diagnostic);
}
