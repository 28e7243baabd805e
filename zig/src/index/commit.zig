//! The end of a build: sums are taken of the files that others have written beside the index's own, then the manifest takes
//! its place.
const std = @import("std");
const layout = @import("layout");
const diagnostics = @import("diagnostic.zig");
const files = @import("files.zig");
const Builder = @import("builder.zig").Builder;
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

/// The manifest comes last: with it the folder is an index.
pub fn commit(builder: *Builder, extra_files: []const []const u8, extra_json: ?[]const u8, diagnostic: *Diagnostic) Error!void {
    const written = builder.written orelse {
        diagnostic.say("commit comes after run", .{});
        return error.InvalidArgument;
    };
    try builder.control.check();
    var arena = std.heap.ArenaAllocator.init(builder.allocator);
    defer arena.deinit();
    var entries: std.ArrayList(layout.manifest.File) = .empty;
    for (written.files.items) |file|
        try entries.append(arena.allocator(), .{ .name = file.name, .bytes = file.summary.bytes, .checksum = try sum_text(arena.allocator(), file.summary.checksum) });
    for (extra_files) |name| {
        if (name.len == 0 or std.mem.indexOfAny(u8, name, "/\\") != null or std.mem.eql(u8, name, layout.manifest.file_name)) {
            diagnostic.argument = "extra_files";
            diagnostic.say("'{s}' is no name of a file inside the folder", .{name});
            return error.InvalidArgument;
        }
        try sync_file(builder.dir, name, diagnostic);
        const summary = try files.summarize(builder.allocator, builder.dir, name, diagnostic);
        try entries.append(arena.allocator(), .{ .name = try arena.allocator().dupe(u8, name), .bytes = summary.bytes, .checksum = try sum_text(arena.allocator(), summary.checksum) });
    }
    const user: std.json.Value = if (extra_json) |text|
        std.json.parseFromSliceLeaky(std.json.Value, arena.allocator(), text, .{}) catch {
            diagnostic.argument = "extra_json";
            diagnostic.say("extra_json is not JSON", .{});
            return error.InvalidArgument;
        }
    else
        .null;
    const o = builder.options;
    const text = try layout.manifest.write(arena.allocator(), &.{
        .format_version = layout.format_version_of(o.page_codes),
        .uuid = &builder.uuid,
        .n = o.n,
        .dim = o.dim,
        .metric = @tagName(o.metric),
        .dtype = @tagName(o.dtype),
        .memory_bits = o.memory_bits,
        .record_bits = o.record_bits,
        .degree = o.degree,
        .build_list_size = o.build_list_size,
        .alpha = o.alpha,
        .seed = o.seed,
        .links_built = written.links_built,
        .page_links = o.page_links,
        .page_codes = o.page_codes,
        .page_size = written.page_size,
        .page_count = written.page_count,
        .edges = written.edges,
        .adjacency_bits = written.adjacency_bits,
        .stores_vectors = o.store_vectors,
        .files = entries.items,
        .user = user,
    });
    // Marker and small work files stay until the build is closed: until then it may be taken over, and finished.
    try files.replace(builder.dir, layout.manifest.file_name, text, diagnostic);
    builder.committed = true;
    builder.control.enter(.done, o.n);
}

fn sum_text(allocator: std.mem.Allocator, checksum: u64) error{OutOfMemory}![]u8 {
    return allocator.dupe(u8, &layout.manifest.checksum_text(checksum));
}

fn sync_file(dir: std.fs.Dir, name: []const u8, diagnostic: *Diagnostic) Error!void {
    const file = dir.openFile(name, .{}) catch |err| return diagnostics.file_error(diagnostic, name, "open", err);
    defer file.close();
    file.sync() catch |err| return diagnostics.file_error(diagnostic, name, "sync", err);
}
