//! Exchanges the caller's files of a finished index: the manifest that names the new ones takes the old one's place in
//! one rename. Pages, codes and links are not touched.
const std = @import("std");
const layout = @import("layout");
const diagnostics = @import("diagnostic.zig");
const files = @import("files.zig");
const reader = @import("reader.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

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
    var parsed = try reader.read_manifest(allocator, dir, path, diagnostic);
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
