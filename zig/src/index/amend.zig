//! What is put into the manifest of an index that is already whole.
const std = @import("std");
const layout = @import("layout");
const reader = @import("reader.zig");
const diagnostics = @import("diagnostic.zig");
const files = @import("files.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

/// Replaces the calibration in the manifest; null takes it out.
pub fn store_calibration(allocator: std.mem.Allocator, path: []const u8, json: ?[]const u8, diagnostic: *Diagnostic) Error!void {
    // Opened to be read, as a folder must be that is to be synced.
    var dir = std.fs.cwd().openDir(path, .{ .iterate = true }) catch |err| return reader.open_folder_error(path, err, diagnostic);
    defer dir.close();
    var parsed = try reader.read_manifest(allocator, dir, path, diagnostic);
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
