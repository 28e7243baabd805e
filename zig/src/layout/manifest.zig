//! manifest.json: what an index folder holds. Written last, so a folder without it is no index. Its last member is
//! the xxh3-64 of every byte before it, so that a flipped bit in the manifest itself is noticed too.
const std = @import("std");
const base = @import("base");
const page = @import("page.zig");

/// Raised when a reader of the former version could misread what this one writes.
pub const format_version: u32 = 5;

/// Pages that hold whole codes, pages with tables of neighbors, and codes of records beside codes of pages are laid out as no former
/// reader knows.
pub fn format_version_of(page_codes: bool, page_tables: bool, record_codes: bool) u32 {
    return if (record_codes) format_version_newest else if (page_tables) 7 else if (page_codes) 6 else format_version;
}

pub const format_version_newest = 8;

pub const file_name = "manifest.json";
pub const bytes_max = 16 * 1024 * 1024;
const checksum_key = ",\n  \"checksum\": \"";

pub const File = struct { name: []const u8, bytes: u64, checksum: []const u8 };

/// Recall and cost of searches with one list size, a query, on rows held out for the purpose.
pub const CalibrationPoint = struct {
    list_size: u32,
    recall: f32,
    /// Standard deviation of `recall`, as a mean over the sample.
    deviation: f32,
    reads: f32,
    rounds: f32,
    estimates: f32,
    expanded: f32,
    /// Records of pages that were scored with their full code.
    scored: f32,
};

/// Points by ascending list size, for one k and one number of links in memory; 0 links are links on disk, or none where a few
/// codes of each page are all that is in memory.
pub const CalibrationCurve = struct { k: u32, links: u32, page_codes: u32 = 0, points: []const CalibrationPoint };

/// The table behind `recall=` of a search.
pub const Calibration = struct {
    queries: u32,
    /// Searches were exact: what they found last was scored from the stored vectors.
    exact: bool = false,
    /// Walks ended by distance, not with the last of the list.
    stops: bool = false,
    curves: []const CalibrationCurve,
    /// Recall of a scan of all codes, without the graph.
    scan: ?CalibrationPoint = null,
    /// Rows of the index that was measured point by point; 0 where that was before they were kept.
    rows: u64 = 0,
    /// The number of times that the table was taken over since, from one index to the next.
    turns: u32 = 0,
    /// The largest recall of codes, if some rows are measured by their codes; 1 if all vectors are known.
    codes: f32 = 1,
};

/// Field names are the keys of the JSON object.
pub const Manifest = struct {
    format_version: u32,
    uuid: []const u8,
    n: u64,
    dim: u32,
    metric: []const u8,
    dtype: []const u8,
    memory_bits: u32,
    record_bits: u32,
    degree: u32,
    build_list_size: u32,
    alpha: f32,
    seed: u64,
    links_built: u32,
    /// Pages hold the neighbor lists of their records; without them links on disk cannot be searched.
    page_links: bool = true,
    /// Pages hold whole codes, and page_codes.bin a few codes of each page: what is searched where codes find no room.
    page_codes: bool = false,
    /// Pages end with a table of neighbors; so they do if `page_codes` is true, except in indexes of format 6.
    page_tables: bool = false,
    /// page_codes.bin has a code of each record, too.
    record_codes: bool = false,
    /// Of a product code, if there are tables; else 0.
    code_bytes: u32 = 0,
    /// Records that a page was to hold, if there are tables; else 0.
    page_records: u32 = 0,
    page_size: u32,
    page_count: u32,
    edges: u64,
    adjacency_bits: u64, // of all lists in pages.bin
    stores_vectors: bool,
    files: []const File,
    /// An object of the caller of the build, kept as it is.
    user: std.json.Value,
    /// Measured by the build; without it the list size for a recall comes from a fixed table.
    calibration: ?Calibration = null,

    pub fn file(self: *const Manifest, name: []const u8) ?File {
        for (self.files) |f| if (std.mem.eql(u8, f.name, name)) return f;
        return null;
    }
};

pub const ParseError = error{
    /// Not JSON, not our fields, or the checksum does not match.
    BadManifest,
    /// Written by a newer version.
    NewerVersion,
    /// Written by an earlier version, in a format that this one does not read.
    OlderVersion,
    OutOfMemory,
};

pub fn checksum_text(value: u64) [16]u8 {
    var text: [16]u8 = undefined;
    _ = std.fmt.bufPrint(&text, "{x:0>16}", .{value}) catch unreachable;
    return text;
}

pub fn write(allocator: std.mem.Allocator, manifest: *const Manifest) error{OutOfMemory}![]u8 {
    var out: std.Io.Writer.Allocating = .init(allocator);
    defer out.deinit();
    std.json.Stringify.value(manifest.*, .{ .whitespace = .indent_2, .emit_null_optional_fields = false }, &out.writer) catch return error.OutOfMemory;
    var text = out.written();
    std.debug.assert(std.mem.endsWith(u8, text, "\n}"));
    text = text[0 .. text.len - 2];
    const sum = checksum_text(base.checksum(text));
    return std.fmt.allocPrint(allocator, "{s}" ++ checksum_key ++ "{s}\"\n}}\n", .{ text, &sum });
}

pub const Parsed = struct {
    arena: *std.heap.ArenaAllocator,
    value: Manifest,
    /// format_version as found, also when parsing failed with NewerVersion or OlderVersion.
    pub fn deinit(self: *Parsed) void {
        const allocator = self.arena.child_allocator;
        self.arena.deinit();
        allocator.destroy(self.arena);
    }
};

pub fn parse(allocator: std.mem.Allocator, text: []const u8) ParseError!Parsed {
    const arena = try allocator.create(std.heap.ArenaAllocator);
    arena.* = .init(allocator);
    errdefer {
        arena.deinit();
        allocator.destroy(arena);
    }
    // The version first: another version's manifest may differ in everything else.
    const Version = struct { format_version: u64 };
    const options: std.json.ParseOptions = .{ .ignore_unknown_fields = true, .allocate = .alloc_always };
    const version = std.json.parseFromSliceLeaky(Version, arena.allocator(), text, options) catch |err| return refuse(err);
    if (version.format_version > format_version_newest) return error.NewerVersion;
    if (version.format_version < format_version) return error.OlderVersion;
    const at = std.mem.lastIndexOf(u8, text, checksum_key) orelse return error.BadManifest;
    const found = text[at + checksum_key.len ..];
    const sum = checksum_text(base.checksum(text[0..at]));
    if (!std.mem.eql(u8, found, sum ++ "\"\n}\n")) return error.BadManifest;
    const value = std.json.parseFromSliceLeaky(Manifest, arena.allocator(), text, options) catch |err| return refuse(err);
    if (value.format_version != format_version_of(value.page_codes, value.page_tables, value.record_codes)) return error.BadManifest;
    if ((value.page_tables and !value.page_codes) or (value.record_codes and !value.page_tables)) return error.BadManifest;
    if (value.page_tables != (value.code_bytes > 0) or value.code_bytes > page.code_bytes_max) return error.BadManifest;
    for (value.files) |file| if (!is_plain_name(file.name)) return error.BadManifest;
    return .{ .arena = arena, .value = value };
}

/// Files lie in the folder itself: a name that leads elsewhere is none.
fn is_plain_name(name: []const u8) bool {
    return name.len > 0 and name.len <= 255 and std.mem.indexOfAny(u8, name, "/\x00") == null and
        !std.mem.eql(u8, name, ".") and !std.mem.eql(u8, name, "..");
}

fn refuse(err: anytype) ParseError {
    return if (err == error.OutOfMemory) error.OutOfMemory else error.BadManifest;
}

const example_files = [_]File{.{ .name = "codes.bin", .bytes = 12, .checksum = "00ff" }};

/// For tests that need a folder's manifest and no index.
pub fn example(n: u64, files: []const File) Manifest {
    return .{
        .format_version = format_version,
        .uuid = "00000000-1111-2222-3333-444444444444",
        .n = n,
        .dim = 3,
        .metric = "l2",
        .dtype = "f32",
        .memory_bits = 4,
        .record_bits = 4,
        .degree = 48,
        .build_list_size = 100,
        .alpha = 1.2,
        .seed = 0,
        .links_built = 32,
        .page_size = 4096,
        .page_count = 1,
        .edges = 4,
        .adjacency_bits = 40,
        .stores_vectors = false,
        .files = files,
        .user = .null,
    };
}

test "a manifest survives a round trip, and no flipped bit does" {
    const allocator = std.testing.allocator;
    const manifest = example(5, &example_files);
    const text = try write(allocator, &manifest);
    defer allocator.free(text);
    var parsed = try parse(allocator, text);
    try std.testing.expectEqual(5, parsed.value.n);
    try std.testing.expectEqualStrings("00ff", parsed.value.file("codes.bin").?.checksum);
    parsed.deinit();
    for (0..text.len * 8) |bit| {
        text[bit / 8] ^= @as(u8, 1) << @intCast(bit % 8);
        defer text[bit / 8] ^= @as(u8, 1) << @intCast(bit % 8);
        if (parse(allocator, text)) |*found| {
            @constCast(found).deinit();
            return error.FlippedBitUnnoticed;
        } else |_| {}
    }
}

test "another version is distinguished from damage" {
    const allocator = std.testing.allocator;
    try std.testing.expectError(error.NewerVersion, parse(allocator, "{\"format_version\": 99, \"other\": []}"));
    try std.testing.expectError(error.OlderVersion, parse(allocator, "{\"format_version\": 1, \"other\": []}"));
    try std.testing.expectError(error.BadManifest, parse(allocator, std.fmt.comptimePrint("{{\"format_version\": {d}}}", .{format_version})));
    try std.testing.expectError(error.BadManifest, parse(allocator, "nonsense"));
}

test "each form of pages has a version of its own" {
    const allocator = std.testing.allocator;
    var manifest = example(5, &example_files);
    for ([_]struct { u32, bool, bool, bool, u32, bool }{
        .{ 5, false, false, false, 0, true },
        .{ 6, true, false, false, 0, true },
        .{ 7, true, true, false, 16, true },
        .{ 8, true, true, true, 16, true },
        .{ 6, true, true, false, 16, false },
        .{ 7, true, false, false, 0, false },
        .{ 7, false, true, false, 16, false },
        .{ 7, true, true, true, 16, false },
        .{ 8, true, true, false, 16, false },
        .{ 8, true, false, true, 0, false },
        .{ 7, true, true, false, 0, false },
        .{ 7, true, true, false, page.code_bytes_max + 1, false },
        .{ 6, true, false, false, 16, false },
    }) |case| {
        manifest.format_version, manifest.page_codes, manifest.page_tables, manifest.record_codes, manifest.code_bytes, const good = case;
        const text = try write(allocator, &manifest);
        defer allocator.free(text);
        if (parse(allocator, text)) |found| {
            var parsed = found;
            defer parsed.deinit();
            try std.testing.expect(good);
        } else |err| try std.testing.expect(!good and err == error.BadManifest);
    }
}

test "a file of another folder is none of the index" {
    const allocator = std.testing.allocator;
    for ([_][]const u8{ "../codes.bin", "/etc/passwd", "a/b", "..", ".", "", "a\x00b", "x" ** 256 }) |name| {
        var manifest = example(5, &example_files);
        const files = [_]File{.{ .name = name, .bytes = 12, .checksum = "00ff" }};
        manifest.files = &files;
        const text = try write(allocator, &manifest);
        defer allocator.free(text);
        try std.testing.expectError(error.BadManifest, parse(allocator, text));
    }
}
