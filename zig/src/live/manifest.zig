//! live.json: the manifest of live data. It names the segments, their tombstones and the log; its presence makes a folder live.
//! Written last, by rename after a sync. Its last member is the xxh3-64 of every byte before it, as in manifest.json.
const std = @import("std");
const base = @import("base");
const layout = @import("layout");

pub const file_name = "live.json";
pub const bytes_max = 16 << 20;
/// Numbers of rows stay so far below what an i64 holds that no call's rows lead beyond it.
pub const next_row_max = 3 << 61;
const format = "velo-live";
const version = 1;
const checksum_key = ",\n  \"checksum\": \"";

/// The name of the segment that a build made. Every later file has a higher number, so no other segment has it.
pub const built_segment = "part-0000000000000001";

/// Features that a reader must know to answer rightly, and a writer to write. An unknown name refuses.
pub const known = [_][]const u8{ "tombstones", rows_name, columns_name, writers_name };
const rows_name = "rows";
/// Several processes write to the folder: a lock is held for a call, and the log has reservations.
const writers_name = "writers";
/// Segments and records may lack the last of the columns that `schema` names.
const columns_name = "columns";

/// The features of readers: in a folder in which rows were only deleted, one to which rows came, one to which columns did.
pub fn understood(rows_came: bool, columns_came: bool) []const []const u8 {
    return if (columns_came) known[0..3] else if (rows_came) known[0..2] else known[0..1];
}

/// An index of the ordinary format in a folder of its own. None of its files ever changes.
pub const Segment = struct {
    path: []const u8,
    uuid: []const u8,
    n: u64,
    /// Segments of one frame share rotation, mean, centers and scales.
    frame: u32 = 0,
    /// The file of its tombstones; none: none of its rows is dead.
    dead: ?[]const u8 = null,
};

/// Field names are the keys of the JSON object.
pub const FolderManifest = struct {
    format: []const u8 = format,
    version: u32 = version,
    readers_understand: []const []const u8 = known[0..2],
    writers_understand: []const []const u8 = &known,
    uuid: []const u8,
    generation: u64,
    dim: u32,
    metric: []const u8,
    /// Of the vectors; roots of the first version do not say it.
    dtype: ?[]const u8 = null,
    /// The kind of ids, once a row has told. Older roots do not name it for rows that were built.
    ids: ?[]const u8 = null,
    /// Columns of the metadata, those that were added last. Older roots say it only of a folder that was made without rows.
    schema: ?[]const u8 = null,
    /// The uuid of the segment that this folder was built with, by which a collection knows its shards.
    built: ?[]const u8 = null,
    /// The last change that the files named here hold; the log begins behind it.
    sequence: u64,
    /// The number of the next row whose id is its number: never given twice.
    next_row: u64,
    /// In the name of the next file.
    next_file: u64,
    parts: []const Segment,
    first_log: []const u8,
    /// Commits that made a segment of the log's rows: a later commit knows whether they have other places than when it began.
    flushes: u64 = 0,
    /// Calls that had a name, the oldest first: a second one with it is not done again.
    requests: []const Request = &.{},
};

pub const Request = struct { request: []const u8, sequence: u64, rows: u64, row: u64 };

pub fn has_rows(manifest: *const FolderManifest) bool {
    return is_asked(manifest, rows_name);
}

/// Whether columns were added after rows were there.
pub fn has_columns(manifest: *const FolderManifest) bool {
    return is_asked(manifest, columns_name);
}

fn is_asked(manifest: *const FolderManifest, wanted: []const u8) bool {
    for (manifest.readers_understand) |name| if (std.mem.eql(u8, name, wanted)) return true;
    return false;
}

pub const ParseError = error{ BadFolderManifest, NewerVersion, OutOfMemory };

pub fn write(allocator: std.mem.Allocator, manifest: *const FolderManifest) error{OutOfMemory}![]u8 {
    var out: std.Io.Writer.Allocating = .init(allocator);
    defer out.deinit();
    std.json.Stringify.value(manifest.*, .{ .whitespace = .indent_2, .emit_null_optional_fields = false }, &out.writer) catch return error.OutOfMemory;
    const text = out.written()[0 .. out.written().len - 2]; // without "\n}"
    const sum = layout.manifest.checksum_text(base.checksum(text));
    return std.fmt.allocPrint(allocator, "{s}" ++ checksum_key ++ "{s}\"\n}}\n", .{ text, &sum });
}

/// All memory is `arena`'s.
pub fn parse(arena: std.mem.Allocator, text: []const u8) ParseError!FolderManifest {
    const options: std.json.ParseOptions = .{ .ignore_unknown_fields = true, .allocate = .alloc_always };
    const at = std.mem.lastIndexOf(u8, text, checksum_key) orelse return error.BadFolderManifest;
    const sum = layout.manifest.checksum_text(base.checksum(text[0..at]));
    if (!std.mem.eql(u8, text[at + checksum_key.len ..], sum ++ "\"\n}\n")) return error.BadFolderManifest;
    // The required features come first: another version may differ in everything else.
    const Asked = struct { format: []const u8, version: u64, readers_understand: []const []const u8, writers_understand: []const []const u8 };
    const asked = std.json.parseFromSliceLeaky(Asked, arena, text, options) catch |err| return refuse(err);
    if (!std.mem.eql(u8, asked.format, format)) return error.BadFolderManifest;
    if (asked.version != version) return error.NewerVersion;
    if (!all_known(asked.readers_understand)) return error.NewerVersion;
    const manifest = std.json.parseFromSliceLeaky(FolderManifest, arena, text, options) catch |err| return refuse(err);
    if (manifest.generation == 0 or manifest.next_row > next_row_max) return error.BadFolderManifest;
    var paths: std.StringHashMapUnmanaged(void) = .empty;
    for (manifest.parts) |segment| {
        if ((try paths.getOrPut(arena, segment.path)).found_existing) return error.BadFolderManifest;
        if (!is_plain(segment.path) or segment.n > base.limits.vertices_max) return error.BadFolderManifest;
        if (segment.dead) |name| if (!is_plain(name)) return error.BadFolderManifest;
    }
    if (!is_plain(manifest.first_log)) return error.BadFolderManifest;
    return manifest;
}

/// Whether this velo may write to it, too.
pub fn is_writable(manifest: *const FolderManifest) bool {
    return all_known(manifest.writers_understand);
}

fn all_known(names: []const []const u8) bool {
    for (names) |name| {
        for (known) |ours| {
            if (std.mem.eql(u8, name, ours)) break;
        } else return false;
    }
    return true;
}

/// A name inside the folder: an index that came from elsewhere leads nowhere else.
fn is_plain(name: []const u8) bool {
    return name.len > 0 and name.len <= 64 and name[0] != '.' and std.mem.indexOfAny(u8, name, "/\\\x00") == null;
}

fn refuse(err: anytype) ParseError {
    return if (err == error.OutOfMemory) error.OutOfMemory else error.BadFolderManifest;
}

fn example() FolderManifest {
    return .{
        .uuid = "00112233445566778899aabbccddeeff",
        .generation = 3,
        .dim = 4,
        .metric = "l2",
        .sequence = 7,
        .next_row = 100,
        .next_file = 9,
        .parts = &.{.{ .path = "part-0000000000000001", .uuid = "u", .n = 100, .dead = "dead-0000000000000008.bin" }},
        .first_log = "log-0000000000000002.velolog",
    };
}

// ---- calls that had a name ----
//
// Calls that had a name: the last of them are kept, so that one which is repeated, since its answer got lost, is not done again.

const kept_max = 1024;
pub const name_bytes_max = 256;

const NamedCall = struct { name: []const u8, sequence: u64, rows: u64, row: u64 };

pub const Requests = struct {
    /// The oldest first.
    items: std.ArrayList(NamedCall) = .empty,

    pub fn deinit(self: *Requests, allocator: std.mem.Allocator) void {
        self.clear(allocator);
        self.items.deinit(allocator);
    }

    pub fn clear(self: *Requests, allocator: std.mem.Allocator) void {
        for (self.items.items) |one| allocator.free(one.name);
        self.items.clearRetainingCapacity();
    }

    pub fn find(self: *const Requests, name: []const u8) ?NamedCall {
        for (self.items.items) |one| if (std.mem.eql(u8, one.name, name)) return one;
        return null;
    }

    pub fn add(self: *Requests, allocator: std.mem.Allocator, name: []const u8, sequence: u64, rows: u64, row: u64) error{OutOfMemory}!void {
        const copy = try allocator.dupe(u8, name);
        errdefer allocator.free(copy);
        try self.items.ensureUnusedCapacity(allocator, 1);
        self.add_owned(allocator, copy, sequence, rows, row);
    }

    /// These, and one more behind them where it has a name.
    pub fn with(self: *const Requests, allocator: std.mem.Allocator, one: NamedCall) error{OutOfMemory}!Requests {
        var both: Requests = .{};
        errdefer both.deinit(allocator);
        for (self.items.items) |before| try both.add(allocator, before.name, before.sequence, before.rows, before.row);
        if (one.name.len > 0) try both.add(allocator, one.name, one.sequence, one.rows, one.row);
        return both;
    }

    /// With room made before, and a name that is its own from now on.
    pub fn add_owned(self: *Requests, allocator: std.mem.Allocator, name: []const u8, sequence: u64, rows: u64, row: u64) void {
        if (self.items.items.len == kept_max) allocator.free(self.items.orderedRemove(0).name);
        self.items.appendAssumeCapacity(.{ .name = name, .sequence = sequence, .rows = rows, .row = row });
    }
};

test "a root survives a round trip, and no flipped bit does" {
    var arena = std.heap.ArenaAllocator.init(std.testing.allocator);
    defer arena.deinit();
    const text = try write(arena.allocator(), &example());
    const back = try parse(arena.allocator(), text);
    try std.testing.expectEqual(7, back.sequence);
    try std.testing.expectEqualStrings("dead-0000000000000008.bin", back.parts[0].dead.?);
    try std.testing.expect(is_writable(&back));
    for (0..text.len * 8) |bit| {
        text[bit / 8] ^= @as(u8, 1) << @intCast(bit % 8);
        defer text[bit / 8] ^= @as(u8, 1) << @intCast(bit % 8);
        try std.testing.expectError(error.BadFolderManifest, parse(arena.allocator(), text));
    }
}

test "what this velo does not understand is refused, apart for readers and for writers" {
    var arena = std.heap.ArenaAllocator.init(std.testing.allocator);
    defer arena.deinit();
    var manifest = example();
    manifest.writers_understand = &.{ "tombstones", "patches" };
    const for_writers = try parse(arena.allocator(), try write(arena.allocator(), &manifest));
    try std.testing.expect(!is_writable(&for_writers));
    manifest.readers_understand = &.{"patches"};
    try std.testing.expectError(error.NewerVersion, parse(arena.allocator(), try write(arena.allocator(), &manifest)));
    manifest = example();
    manifest.version = 2;
    try std.testing.expectError(error.NewerVersion, parse(arena.allocator(), try write(arena.allocator(), &manifest)));
    manifest = example();
    manifest.first_log = "../elsewhere";
    try std.testing.expectError(error.BadFolderManifest, parse(arena.allocator(), try write(arena.allocator(), &manifest)));
    manifest = example();
    manifest.parts = &.{ manifest.parts[0], manifest.parts[0] };
    try std.testing.expectError(error.BadFolderManifest, parse(arena.allocator(), try write(arena.allocator(), &manifest)));
    manifest = example();
    manifest.next_row = next_row_max + 1;
    try std.testing.expectError(error.BadFolderManifest, parse(arena.allocator(), try write(arena.allocator(), &manifest)));
}

test "the oldest names are forgotten" {
    const allocator = std.testing.allocator;
    var requests: Requests = .{};
    defer requests.deinit(allocator);
    var buffer: [16]u8 = undefined;
    for (0..kept_max + 5) |i| try requests.add(allocator, try std.fmt.bufPrint(&buffer, "r{d}", .{i}), i, 1, 0);
    try std.testing.expectEqual(null, requests.find("r4"));
    try std.testing.expectEqual(5, requests.find("r5").?.sequence);
    try std.testing.expectEqual(kept_max + 4, requests.find("r1028").?.sequence);
}
