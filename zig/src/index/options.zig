//! Options of a build, and their limits.
const std = @import("std");
const base = @import("base");
const layout = @import("layout");
const quant = @import("quant");
const graph = @import("graph");
const diagnostics = @import("diagnostic.zig");
const space = @import("space.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;
const Metric = space.Metric;
const Dtype = space.Dtype;

/// Links a vertex in links.bin unless a build names a number.
pub const links_usual = 32;
/// The same of an index for budgets below vector codes: enough for the lists that vertices share where codes just fit
/// (docs/decisions/0024).
pub const links_below_codes = 8;

/// Another device, which walks for one graph after the other while it is built.
pub const Walker = struct {
    context: *anyopaque,
    /// Null where it makes no walks for this graph. `product`: distances are those of `quant.ProductCodes`.
    begin: *const fn (context: *anyopaque, points: *const quant.BuildCodes, product: bool) ?graph.Walks,
    end: *const fn (context: *anyopaque) void,
};

/// The largest page that a budget leads to for vectors of that many dimensions: segments of one folder may differ.
pub fn page_size_most(dim: u32) u32 {
    var most: u32 = 0;
    for ([_]bool{ false, true }) |page_codes| {
        const options: Options = .{ .dim = dim, .n = 1, .metric = .l2, .dtype = .f32, .page_codes = page_codes };
        most = @max(most, options.page_geometry(.{ .dim = quant.dim_code_of(dim), .memory_bits = 4, .record_bits = 6 }, 0).page_size);
    }
    return most;
}

pub const Options = struct {
    dim: u32,
    n: u64,
    metric: Metric,
    dtype: Dtype,
    memory_bits: u32 = 4,
    record_bits: u32 = 4,
    degree: u32 = 48,
    build_list_size: u32 = 100,
    alpha: f32 = 1.2,
    /// Null: `links_usual`, or the degree where that is less.
    links_kept: ?u32 = null,
    /// Pages hold the neighbor lists of their records: what links on disk need. Without them a page holds more records.
    page_links: bool = true,
    /// Pages are filled once, for records of sizes that come from experience, and no vertices change places. It takes a third of
    /// the time; a search reads a few pages more.
    places_once: bool = false,
    /// Pages hold whole codes and a table of neighbors, and page_codes.bin a few codes of each page: what searches need where codes
    /// have no room.
    page_codes: bool = false,
    /// With `page_codes`: page_codes.bin has a product code of this many bytes of each record, too; 0: it has none.
    record_code_bytes: u32 = 0,
    threads: u32 = 1,
    /// The threads that link and place run while processors have nothing else to do.
    gives_way: bool = false,
    seed: u64 = 0,
    memory_bytes: u64 = 0,
    store_vectors: bool = false,
    /// The rows of vectors.bin come after placement, in its order, and not from the second pass. Only for transient builds.
    vectors_last: bool = false,
    overwrite: bool = false,
    /// The largest distance between records of one color: a percentile of the distances to a cluster's centroid.
    affinity_percent: u32 = 5,
    /// Begin at the first row whatever a killed build left.
    restart: bool = false,
    /// Between two times that the state of a stage is saved, at least.
    checkpoint_ms: u32 = 30_000,
    /// This build is not resumed if it is killed: nothing is saved for that, and what waits for placement waits in
    /// memory where the budget has room.
    transient: bool = false,
    walker: ?Walker = null,

    /// Links a vertex in links.bin.
    pub fn links(self: *const Options) u32 {
        return self.links_kept orelse @min(links_usual, self.degree);
    }

    /// Pages as they are written.
    pub fn page_geometry(self: *const Options, params: quant.CodeParams, salt: u32) layout.page.Geometry {
        var geometry: layout.page.Geometry = .{
            .page_size = base.limits.page_size_min,
            .lower_bytes = @intCast(params.lower_bytes()),
            .salt = salt,
            .lists = true,
        };
        if (self.page_codes) {
            geometry.lists = self.page_links;
            geometry.upper_bytes = @intCast(params.upper_bytes());
            geometry.code_bytes = if (self.record_code_bytes > 0) self.record_code_bytes else quant.Product.parts_for(self.dim);
            while (geometry.page_size < base.limits.page_size_max and
                table_records_min * self.record_guess(geometry) * 100 > 76 * (geometry.page_size - layout.page.header_bytes)) geometry.page_size *= 2;
            return geometry;
        }
        // The smallest page that holds a handful of the largest records.
        const list_bytes_max = 1 + self.degree * (layout.adjacency.code_length_max + 31) / 8 + 1;
        while (geometry.page_size < base.limits.page_size_max and
            geometry.bytes_needed(4, 4 * @min(list_bytes_max, self.degree * 3)) > geometry.page_size) geometry.page_size *= 2;
        geometry.lists = self.page_links;
        return geometry;
    }

    /// Records of a page with a table, and bytes of a record with its list, if pages hold these.
    const table_records_min = 4;
    const table_records_max = 13;
    /// The share of a page for records. Where memory has a code of each record, tables are hardly needed.
    const records_percent = 60;
    const records_percent_with_codes = 85;

    fn record_guess(self: *const Options, geometry: layout.page.Geometry) u32 {
        return geometry.record_bytes() + if (geometry.lists) 2 + self.degree * 13 / 8 else 0;
    }

    /// Records that a page is to hold beside its table; 0 if pages have none.
    pub fn page_records(self: *const Options, geometry: layout.page.Geometry) u32 {
        if (geometry.code_bytes == 0) return 0;
        const room = geometry.page_size - layout.page.header_bytes - layout.page.table_bytes_min;
        const record = self.record_guess(geometry);
        const wanted = if (self.record_code_bytes > 0)
            @max(table_records_min, room * records_percent_with_codes / 100 / record)
        else
            std.math.clamp(room * records_percent / 100 / record, table_records_min, table_records_max);
        return @max(1, @min(wanted, room / record));
    }

    /// Options that a build must share with another to go on from its work, its input aside.
    pub fn identity(self: *const Options) u64 {
        var hash = std.hash.XxHash3.init(0);
        inline for (.{
            self.dim,
            self.n,
            @intFromEnum(self.metric),
            @intFromEnum(self.dtype),
            self.memory_bits,
            self.record_bits,
            self.degree,
            self.build_list_size,
            @as(u32, @bitCast(self.alpha)),
            self.links(),
            @intFromBool(self.page_links),
            @intFromBool(self.page_codes),
            self.record_code_bytes,
            @intFromBool(self.places_once),
            // One thread promises the same bytes every time, so it goes on from no other's work.
            if (self.threads == 1) 1 + @as(u32, @intFromBool(self.walker != null)) else 0,
            self.seed,
            @intFromBool(self.store_vectors),
            self.affinity_percent,
        }) |value| hash.update(std.mem.asBytes(&@as(i128, value)));
        return hash.final();
    }
};

/// The division of a build that fits its memory: in one piece, or in partitions of at most `members_max` rows, guests included.
pub const Plan = struct {
    partitions: u32 = 0,
    members_max: u32 = 0,
    /// Partitions go on from the lists of a former index, with so many of the rows that are gone at a time.
    goes_on: bool = false,
    removed_max: u64 = 0,
};

/// Memory of a former index while partitions go on from its lists: bytes, and bytes of each member of a partition.
pub const Beside = struct { bytes: u64, member_bytes: u64, removed_per_member: f64 };

/// Of a row in a graph under construction: its code, its factors, its list, and what insertion or placement keep of it.
fn member_bytes(options: Options, dim_code: u32) u64 {
    const codes = @as(u64, dim_code) + @sizeOf(quant.BuildCodes.PairFactors);
    const neighbors = @as(u64, options.degree) * 4;
    const small = 32; // degrees, locks; or what placement keeps of every vertex
    return codes + neighbors + small;
}

/// Bytes that a partitioned build keeps of every row at most: its place, its size, its partition, its color.
const row_bytes = 20;
/// Every row has two places; so much more room than rows need lets most of them be where they belong.
const room_share = 1.15;
/// A partition is never planned smaller; that many members stand beside any budget.
const members_least = 1024;
const partitions_max = 1024;

/// Resident bytes of a build in one piece at its peak: the graph stage, and the writing that follows it.
pub fn memory_whole(options: Options, dim_code: u32) u64 {
    return options.n * member_bytes(options, dim_code);
}

/// The work that a transient build holds in memory.
pub const ListContains = struct { points: bool = false, codes: bool = false, vectors: bool = false };

/// Points take no more than the graph stage does anyway, but earlier: while a former index is read, which takes `former_bytes`.
pub fn held(options: Options, built: Plan, params: quant.CodeParams, code_row_bytes: u64, warm_start_bytes: u64) ListContains {
    if (!options.transient or built.partitions > 0) return .{};
    const limit = if (options.memory_bytes == 0) std.math.maxInt(u64) else options.memory_bytes;
    var left = std.math.sub(u64, limit, memory_whole(options, params.dim) + warm_start_bytes) catch return .{};
    const codes = options.n * code_row_bytes <= left;
    if (codes) left -= options.n * code_row_bytes;
    return .{ .points = true, .codes = codes, .vectors = codes and !options.vectors_last and options.n * options.dim * options.dtype.bytes() <= left };
}

/// The least that a partitioned build needs.
pub fn memory_least(options: Options, dim_code: u32) u64 {
    const members = members_for(options.n, partitions_max);
    const partition = if (members > members_least) members * (member_bytes(options, dim_code) + @sizeOf(u32)) else 0;
    return @min(memory_whole(options, dim_code), options.n * row_bytes + partition);
}

/// For the rows that a build samples: the memory of its later stages is not in use yet, but their training takes as much again.
pub fn sample_room_bytes(options: Options) u64 {
    return if (options.memory_bytes == 0) std.math.maxInt(u64) else options.memory_bytes / 4;
}

fn members_for(n: u64, partitions: u64) u64 {
    return @intFromFloat(@ceil(2 * room_share * @as(f64, @floatFromInt(n)) / @as(f64, @floatFromInt(partitions))));
}

/// In one piece whenever the budget allows it.
pub fn plan(options: Options, dim_code: u32, diagnostic: *Diagnostic) Error!Plan {
    if (options.memory_bytes == 0 or memory_whole(options, dim_code) <= options.memory_bytes) return .{};
    const least = memory_least(options, dim_code);
    if (least > options.memory_bytes) {
        diagnostic.argument = "memory";
        diagnostic.needed_bytes = least;
        diagnostic.say("building {d} vectors of {d} dimensions at degree {d} takes {d} bytes at least, but memory is {d}", .{
            options.n, options.dim, options.degree, least, options.memory_bytes,
        });
        return error.BudgetTooSmall;
    }
    if (options.n <= members_least) return .{};
    return partitioned(options, options.memory_bytes - options.n * row_bytes, member_bytes(options, dim_code));
}

fn partitioned(options: Options, left: u64, each: u64) Plan {
    const members = @max(members_least, left / (each + @sizeOf(u32)));
    const count = std.math.clamp(members_for(options.n, members), 3, partitions_max); // of n and the room, for the count
    return .{ .partitions = @intCast(count), .members_max = @intCast(members_for(options.n, count)) };
}

/// The plan where partitions go on from a former index; null where the memory has no room for that.
pub fn plan_beside(options: Options, dim_code: u32, beside: Beside) ?Plan {
    const left = std.math.sub(u64, options.memory_bytes, options.n * row_bytes + beside.bytes) catch return null;
    const each = member_bytes(options, dim_code) + beside.member_bytes;
    if (left / (each + @sizeOf(u32)) < @max(members_least, members_for(options.n, partitions_max))) return null;
    var found = partitioned(options, left, each);
    found.goes_on = true;
    found.removed_max = @intFromFloat(@ceil(beside.removed_per_member * @as(f64, @floatFromInt(found.members_max))));
    return found;
}

pub fn check(options: Options, diagnostic: *Diagnostic) Error!void {
    const Check = struct {
        fn range(d: *Diagnostic, argument: []const u8, value: u64, low: u64, high: u64) Error!void {
            if (value >= low and value <= high) return;
            d.argument = argument;
            d.say("{s} is {d}; it must lie within {d} and {d}", .{ argument, value, low, high });
            return error.InvalidArgument;
        }
    };
    if (options.n == 0) {
        diagnostic.argument = "vectors";
        diagnostic.say("an index needs at least one vector", .{});
        return error.Empty;
    }
    try Check.range(diagnostic, "row_count", options.n, 1, graph.vertices_max);
    inline for (.{ "dim", "memory_bits", "record_bits", "degree", "build_list_size", "threads", "affinity_percent", "checkpoint_ms" }) |name| {
        const limit = @field(base.limits.ranges, name);
        try Check.range(diagnostic, name, @field(options, name), limit.min, limit.max);
    }
    try Check.range(diagnostic, "links_kept", options.links(), base.limits.ranges.links_kept.min, options.degree);
    if (options.record_code_bytes > 0) {
        try Check.range(diagnostic, "record_code_bytes", options.record_code_bytes, 1, @min(options.dim, quant.Product.parts_max));
        if (!options.page_codes) {
            diagnostic.argument = "record_code_bytes";
            diagnostic.say("codes of records are stored beside codes of pages (page_codes)", .{});
            return error.InvalidArgument;
        }
    }
    if (!options.page_links and options.links() == 0) {
        diagnostic.argument = "links_kept";
        diagnostic.say("links_kept is 0, and pages shall hold no links either: nothing could be searched", .{});
        return error.InvalidArgument;
    }
    const alpha = base.limits.ranges.alpha;
    if (!alpha.holds(options.alpha)) {
        diagnostic.argument = "alpha";
        diagnostic.say("alpha is {d}; it must lie within {d} and {d}", .{ options.alpha, alpha.min, alpha.max });
        return error.InvalidArgument;
    }
}

// ---- progress ----
//
// Shared between the threads of a build and its caller.

pub const Stage = enum(i32) { scan = 0, encode = 1, graph = 2, place = 3, write = 4, commit = 5, done = 6 };

pub const Control = struct {
    stage: std.atomic.Value(i32) = .init(0),
    done: std.atomic.Value(u64) = .init(0),
    total: std.atomic.Value(u64) = .init(0),
    /// The stage at which this build goes on from a killed one; `.scan` where it does not.
    resumed: std.atomic.Value(i32) = .init(0),
    resumed_done: std.atomic.Value(u64) = .init(0),
    canceled: std.atomic.Value(bool) = .init(false),

    pub fn enter(self: *Control, stage: Stage, total: u64) void {
        self.done.store(0, .monotonic);
        self.total.store(total, .monotonic);
        self.stage.store(@intFromEnum(stage), .release);
    }

    pub fn check(self: *const Control) error{Canceled}!void {
        if (self.canceled.load(.monotonic)) return error.Canceled;
    }
};
