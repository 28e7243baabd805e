//! Sizes of an index by its shape, before there are vectors: the bits that a budget of searches has room for, the memory that an
//! open index takes, its files, and the memory of its build. Sizes of codes and records are those of the format. Lengths of lists
//! follow from the data: they are estimates, rounded up.
const std = @import("std");
const base = @import("base");
const layout = @import("layout");
const quant = @import("quant");
const block_adjacency = @import("block_adjacency.zig");
const lists_in_memory = @import("lists_in_memory.zig");
const page_codes = @import("page_codes.zig");
const build_options = @import("options.zig");
const Dtype = @import("space.zig").Dtype;

/// Bits of a dimension in memory and in the record.
const Split = struct { memory_bits: u32, record_bits: u32 };

/// Splits that budgets choose from, the most memory first. Pages in memory save more reads than longer codes would
/// (docs/decisions/0022).
const splits = [_]Split{
    .{ .memory_bits = 4, .record_bits = 6 },
    .{ .memory_bits = 3, .record_bits = 7 },
    .{ .memory_bits = 2, .record_bits = 6 },
    .{ .memory_bits = 1, .record_bits = 7 },
};
const split_least = splits[splits.len - 1];
/// Those before this one are for links of each vertex; the others for links that vertices share, or on disk
/// (docs/decisions/0016).
const split_shared = 2;
/// Bits in all where no budget chooses them: the longest lists end near recall@10 0.996 on a million SIFT descriptors, and near
/// 0.993 with one bit less.
const bits_in_all = 10;
const memory_bits_default = 4;
/// The last split of own links is chosen down to this number of links, the others down to `lists_in_memory.kept_enough`.
const links_least = 12;

/// Sizes of record codes that budgets choose from are multiples of it, from those of page codes up.
const record_code_step = 4;
/// Codes of vectors that are longer by this factor than the longest codes of records replace these where they have room.
const longest_code_ratio = 2;

/// Caches of a smaller part of the pages than 1 / `cached_share_least` are left out.
pub const cached_share_least = 20;

/// codes.bin beside vectors, centers and mean.
const codes_head_bytes = 256;
/// An estimate of a record's list in its page, where the degree is open.
const record_list_bytes = 53;
/// Lists of each vertex take their length and a share of their group's begin; shared lists a little more than their estimate.
const list_bytes = 1.7;
const shared_list_bytes = 1.5;
const shared_lists_head_bytes = 160;
/// Few pages hold fewer records than the others: the last of each thread, or of each partition.
const pages_factor = 1.005;

/// velo_plan_options of velo.h, which describes the fields.
pub const Options = extern struct {
    struct_size: u32 = @sizeOf(Options),
    dim: u32,
    row_count: u64,
    memory_bytes: u64 = 0,
    memory_floor_bytes: u64 = 0,
    shards: u32 = 1,
    dtype: i32 = 0,
    degree: u32,
    memory_bits: u32 = 0,
    record_bits: u32 = open,
    links_kept: u32 = open,
    page_links: i32 = -1,
    page_codes: i32 = -1,
    store_vectors: i32 = 0,
    bits_step: i32 = 0,
    record_code_bytes: u32 = open,

    /// Of numbers that are chosen here.
    pub const open = std.math.maxInt(u32);
};

/// velo_sizes of velo.h, which describes the fields.
pub const Sizes = extern struct {
    struct_size: u32 = @sizeOf(Sizes),
    memory_bits: u32,
    record_bits: u32,
    links_built: u32,
    page_links: i32,
    page_codes: i32,
    links_kept: u32 = 0,
    page_codes_kept: u32 = 0,
    records_per_page: u32,
    record_code_bytes: u32 = 0,
    needed_bytes: u64,
    codes_least_bytes: u64,
    page_codes_least_bytes: u64,
    memory_codes_bytes: u64,
    memory_links_bytes: u64 = 0,
    memory_pages_bytes: u64,
    memory_cache_bytes: u64 = 0,
    disk_codes_bytes: u64,
    disk_pages_bytes: u64,
    disk_page_codes_bytes: u64,
    disk_links_bytes: u64,
    disk_ids_bytes: u64,
    disk_vectors_bytes: u64,
    build_whole_bytes: u64,
    build_least_bytes: u64,

    /// Chooses the options that were left open. If `needed_bytes` is more than the budget, no such index opens in it, and the fields
    /// about memory have no meaning.
    pub fn of(o: *const Options, dtype: Dtype) Sizes {
        const shards: f64 = @floatFromInt(o.shards);
        const shape: Shape = .{ .n = (o.row_count + o.shards - 1) / o.shards, .dim = o.dim };
        const bounded = o.memory_bytes > 0;
        const budget: f64 = if (bounded) @floatFromInt(@max(1, o.memory_bytes / o.shards)) else std.math.inf(f64);

        const memory_bits = if (o.memory_bits == 0) memory_bits_default else o.memory_bits;
        var split: Split = .{ .memory_bits = memory_bits, .record_bits = @min(base.limits.ranges.record_bits.max, bits_in_all - memory_bits) };
        if (bounded and o.memory_bits == 0) split = splits[@intCast(std.math.clamp(shape.split_within(budget) -| o.bits_step, 0, splits.len - 1))];
        // Codes of records take the place of codes of vectors.
        const record_code_bytes = if (o.record_code_bytes != Options.open) o.record_code_bytes else if (!bounded or o.memory_bits != 0 or o.page_codes == 0)
            0
        else
            shape.record_code_bytes_within(budget, split, o.degree);
        if (record_code_bytes > 0 and o.memory_bits == 0) split = split_least;
        if (o.record_bits != Options.open) split.record_bits = o.record_bits;

        const codes_bytes = shape.codes_bytes(split);
        var build = shape.page_codes_build(o.degree, record_code_bytes);
        build.dtype = dtype;
        const page_codes_least = Levels.of(shape, &build).bytes[0];
        // Of few rows codes may take less than the quantizer of page codes.
        const with_page_codes = if (o.page_codes < 0) record_code_bytes > 0 or codes_bytes > @max(budget, page_codes_least) else o.page_codes != 0;
        const traverses_pages = with_page_codes and (record_code_bytes > 0 or codes_bytes > budget);
        const usual: u32 = if (traverses_pages) build_options.links_below_codes else build_options.links_usual;
        const built = if (o.links_kept == Options.open) @min(usual, o.degree) else o.links_kept;
        var links_in_pages = o.page_links != 0;
        if ((bounded or with_page_codes) and o.page_links < 0) {
            const fit = with_page_codes or shape.links_fit(budget, split, links_least) or
                (built >= block_adjacency.built_min and shape.shared_within(budget, split) != 0);
            links_in_pages = built == 0 or !fit;
        }
        build.memory_bits = split.memory_bits;
        build.record_bits = split.record_bits;
        build.page_links = links_in_pages;
        const levels: Levels = .of(shape, &build);

        const rows: f64 = @floatFromInt(o.row_count);
        const record = shape.record_bytes(split) + if (links_in_pages) 2 + @as(f64, @floatFromInt(o.degree)) * shape.link_bytes() else 0;
        const page: Page = if (with_page_codes) .with_table(shape, &build) else .of(record);
        const pages_bytes = rows * page.bytes / page.records;
        const directory = rows * page.directory_bytes();
        const code_bytes = rows * shape.code_bytes(split);
        const built_lists = @as(f64, @floatFromInt(built)) * (shape.link_bytes() + @as(f64, layout.links.tier_bits) / 8) + 1.5;
        var sizes: Sizes = .{
            .memory_bits = split.memory_bits,
            .record_bits = split.record_bits,
            .links_built = built,
            .page_links = @intFromBool(links_in_pages),
            .page_codes = @intFromBool(with_page_codes),
            .record_code_bytes = record_code_bytes,
            .records_per_page = @intFromFloat(page.records),
            .needed_bytes = rounded(shards * if (with_page_codes) @min(levels.bytes[0], codes_bytes) else codes_bytes),
            .codes_least_bytes = rounded(shards * shape.codes_bytes(split_least)),
            .page_codes_least_bytes = rounded(shards * page_codes_least),
            .memory_codes_bytes = rounded(code_bytes),
            .memory_pages_bytes = rounded(directory),
            .disk_codes_bytes = rounded(code_bytes),
            .disk_pages_bytes = rounded(pages_bytes),
            .disk_page_codes_bytes = if (with_page_codes) rounded(shards * levels.disk_bytes) else 0,
            .disk_links_bytes = rounded(rows * built_lists),
            .disk_ids_bytes = 8 * o.row_count,
            .disk_vectors_bytes = if (o.store_vectors != 0) rounded(rows * vector_bytes(o.dim * dtype.bytes())) else 0,
            .build_whole_bytes = build_options.memory_whole(build, shape.dim_code()),
            .build_least_bytes = build_options.memory_least(build, shape.dim_code()),
        };
        if (traverses_pages) {
            const level = levels.within(budget);
            sizes.page_codes_kept = levels.counts[level];
            sizes.memory_codes_bytes = rounded(@max(0, shards * levels.bytes[level] - directory));
            if (record_code_bytes > 0) {
                const rest = o.memory_bytes -| (sizes.memory_codes_bytes + sizes.memory_pages_bytes);
                if (@as(f64, @floatFromInt(rest)) > pages_bytes / cached_share_least) sizes.memory_cache_bytes = @min(rest, sizes.disk_pages_bytes);
            }
            return sizes;
        }
        sizes.links_kept = if (bounded) shape.links_within(budget, split, built) else built;
        const shared = block_adjacency.shape_of(sizes.links_kept);
        const list = if (shared) |lists| shape.shared_list_bytes_of(lists) else if (sizes.links_kept == 0) 0 else shape.own_list_bytes(sizes.links_kept);
        sizes.memory_links_bytes = rounded(rows * list);
        const left = o.memory_bytes -| (sizes.memory_codes_bytes + sizes.memory_links_bytes + sizes.memory_pages_bytes);
        if (sizes.links_kept > 0 and shared == null and @as(f64, @floatFromInt(left)) > pages_bytes / cached_share_least)
            sizes.memory_cache_bytes = @min(left, sizes.disk_pages_bytes);
        return sizes;
    }
};

/// Numbers of links a vertex that an open keeps below all that were built, descending: of each vertex, or in shared lists. 0 beyond
/// the last.
pub fn links_step(place: u32, shared: bool) u32 {
    const own = layout.links.tier_bounds;
    const shapes = block_adjacency.shapes;
    if (place >= if (shared) shapes.len else own.len) return 0;
    return if (shared) shapes[place].kept() else own[own.len - 1 - place];
}

/// Rows and dimensions of one index; bytes are those of a vector unless a comment says otherwise.
const Shape = struct {
    n: u64,
    dim: u32,

    fn rows(shape: Shape) f64 {
        return @floatFromInt(@max(1, shape.n));
    }

    fn dim_code(shape: Shape) u32 {
        return quant.dim_code_of(shape.dim);
    }

    fn params(shape: Shape, split: Split) quant.CodeParams {
        return .{ .dim = shape.dim_code(), .memory_bits = @intCast(split.memory_bits), .record_bits = @intCast(split.record_bits) };
    }

    /// Centers, mean and header of codes.bin, of all vectors.
    fn shared_bytes(shape: Shape) f64 {
        return @floatFromInt(@as(u64, quant.Centers.count_for(shape.n)) * shape.dim_code() * 4 + shape.dim * 4 + codes_head_bytes);
    }

    /// A code in memory with its factors, and its share of what all have in common.
    fn code_bytes(shape: Shape, split: Split) f64 {
        return @as(f64, @floatFromInt(shape.params(split).entry_bytes())) + shape.shared_bytes() / shape.rows();
    }

    /// A record without its list, in pages without whole codes.
    fn record_bytes(shape: Shape, split: Split) f64 {
        const geometry: layout.page.Geometry = .{
            .page_size = base.limits.page_size_min,
            .lower_bytes = @intCast(shape.params(split).lower_bytes()),
            .salt = 0,
            .lists = false,
        };
        return @floatFromInt(geometry.record_bytes());
    }

    /// Codes and page directory of all vectors.
    fn codes_bytes(shape: Shape, split: Split) f64 {
        const each = shape.code_bytes(split) + Page.of(shape.record_bytes(split) + record_list_bytes).directory_bytes();
        return @ceil(@as(f64, @floatFromInt(shape.n)) * each);
    }

    /// A link in a list: about 0.63 log2 n bits (gaps of ids in placement order), and a tenth to spare.
    fn link_bytes(shape: Shape) f64 {
        return @as(f64, 0.63) * 1.1 * @log2(@max(2, shape.rows())) / 8;
    }

    fn own_list_bytes(shape: Shape, links: u32) f64 {
        return list_bytes + @as(f64, @floatFromInt(links)) * shape.link_bytes();
    }

    fn shared_list_bytes_of(shape: Shape, lists: block_adjacency.Shape) f64 {
        const list = lists.list_bytes(shape.rows()) + shared_list_bytes;
        return list / @as(f64, @floatFromInt(lists.stretch)) + shared_lists_head_bytes / shape.rows();
    }

    fn links_fit(shape: Shape, budget: f64, split: Split, links: u32) bool {
        return shape.code_bytes(split) + shape.own_list_bytes(links) <= budget / shape.rows();
    }

    /// Shared links that fit beside codes; 0 if none do. The page directory is that of pages without lists, since an index may be
    /// built so.
    fn shared_within(shape: Shape, budget: f64, split: Split) u32 {
        const room = budget / shape.rows() - (shape.code_bytes(split) + Page.of(shape.record_bytes(split)).directory_bytes());
        for (block_adjacency.shapes) |lists| if (shape.shared_list_bytes_of(lists) <= room) return lists.kept();
        return 0;
    }

    /// Links of `built` that an open within a budget keeps, own or shared; 0 if too few fit.
    fn links_within(shape: Shape, budget: f64, split: Split, built: u32) u32 {
        const enough = @min(built, lists_in_memory.kept_enough);
        var kept: ?u32 = enough;
        while (kept) |links| : (kept = lists_in_memory.step_down(enough, links)) if (shape.links_fit(budget, split, links)) return links;
        return if (built >= block_adjacency.built_min) shape.shared_within(budget, split) else 0;
    }

    /// The least build with page codes.
    fn page_codes_build(shape: Shape, degree: u32, record_code_bytes: u32) build_options.Options {
        return .{
            .dim = shape.dim,
            .n = shape.n,
            .metric = .l2,
            .dtype = .f32,
            .degree = degree,
            .memory_bits = split_least.memory_bits,
            .record_bits = split_least.record_bits,
            .page_links = false,
            .page_codes = true,
            .record_code_bytes = record_code_bytes,
        };
    }

    /// Bytes of record codes for a budget; 0 where it has room for better codes of vectors and their links, or for no codes of records.
    fn record_code_bytes_within(shape: Shape, budget: f64, split: Split, degree: u32) u32 {
        const has_links = shape.links_fit(budget, split, links_least) or shape.shared_within(budget, split) != 0;
        if (split.memory_bits > split_least.memory_bits and has_links) return 0;
        const most: u32 = @min(shape.dim, quant.Product.parts_max);
        var bytes: u32 = if (most > record_code_step) most / record_code_step * record_code_step else most;
        while (bytes >= quant.Product.parts_for(shape.dim)) : (bytes -= @min(bytes, record_code_step)) {
            const build = shape.page_codes_build(degree, bytes);
            const levels: Levels = .of(shape, &build);
            if (levels.bytes[levels.len - 1] > budget) continue;
            // Of many dimensions the longest codes of records are coarse.
            const vector_code_bytes = shape.params(split_least).entry_bytes();
            return if (vector_code_bytes > longest_code_ratio * bytes and shape.codes_bytes(split_least) <= budget) 0 else bytes;
        }
        return 0;
    }

    /// The most bits in memory that leave room for enough links, own or shared. Two bits and links on disk read half of what one bit
    /// and shared links do, in more rounds.
    fn split_within(shape: Shape, budget: f64) i32 {
        for (splits, 0..) |split, number| {
            const fits = if (number < split_shared)
                shape.links_fit(budget, split, if (number == split_shared - 1) links_least else lists_in_memory.kept_enough)
            else
                shape.codes_bytes(split) <= budget;
            if (fits) return @intCast(number);
        }
        return splits.len - 1;
    }
};

const Page = struct {
    bytes: f64,
    records: f64,
    /// Nearly all pages hold as many records.
    filled: bool = false,

    fn of(record: f64) Page {
        var bytes: f64 = base.limits.page_size_min;
        while (bytes < base.limits.page_size_max and bytes - layout.page.header_bytes < record) bytes *= 2;
        return .{ .bytes = bytes, .records = std.math.clamp(@floor((bytes - layout.page.header_bytes) / record), 1, layout.page.records_max) };
    }

    fn with_table(shape: Shape, build: *const build_options.Options) Page {
        const geometry = build.page_geometry(shape.params(.{ .memory_bits = build.memory_bits, .record_bits = build.record_bits }), 0);
        return .{ .bytes = @floatFromInt(geometry.page_size), .records = @floatFromInt(build.page_records(geometry)), .filled = true };
    }

    /// A vector's share of the page directory, which has runs of filled pages.
    fn directory_bytes(page: Page) f64 {
        const each = 4.0 / @as(f64, layout.page_starts.Directory.block_size) + 4 / page.records;
        return if (page.filled) each / runs_share else each;
    }

    /// Of the memory of other directories.
    const runs_share = 64;
};

/// Memory of page codes and page directory by number of codes for each page, the least first.
const Levels = struct {
    counts: [levels_max]u32 = @splat(0),
    len: u32,
    bytes: [levels_max]f64 = @splat(0),
    disk_bytes: f64,

    /// One is of records.
    const levels_max = layout.headers.PageProducts.levels_max + 1;

    fn of(shape: Shape, build: *const build_options.Options) Levels {
        const page: Page = .with_table(shape, build);
        const rows: f64 = @floatFromInt(shape.n);
        const pages: u32 = @intFromFloat(@ceil(pages_factor * rows / page.records) + 2);
        const header = page_codes.product_header_of(pages, @intFromFloat(page.records), build.record_code_bytes > 0, if (build.record_code_bytes > 0) build.record_code_bytes else quant.Product.parts_for(shape.dim), @intCast(quant.Product.stored_bytes_max(shape.dim, shape.n)), 0);
        const found: page_codes.Levels = .{ .header = .{ .products = header }, .code_bytes = 0 };
        const beside = rows * page.directory_bytes() + shape.shared_bytes();
        var levels: Levels = .{ .len = @intCast(found.level_count()), .disk_bytes = @floatFromInt(header.file_bytes()) };
        for (levels.bytes[0..levels.len], levels.counts[0..levels.len], 0..) |*bytes, *count, number| {
            bytes.* = @ceil(@as(f64, @floatFromInt(found.memory_bytes(number))) + beside);
            count.* = found.count_of(number);
        }
        return levels;
    }

    /// The finest level that fits, or the coarsest.
    fn within(levels: *const Levels, budget: f64) usize {
        var number: usize = levels.len - 1;
        while (number > 0 and levels.bytes[number] > budget) number -= 1;
        return number;
    }
};

/// A row of vectors.bin, with the unused space of its page.
fn vector_bytes(row_bytes: u32) f64 {
    const geometry: layout.vectors.Geometry = .of(row_bytes, 0);
    return @as(f64, @floatFromInt(geometry.page_size)) / @as(f64, @floatFromInt(geometry.rows_per_page));
}

fn rounded(bytes: f64) u64 {
    return @intFromFloat(@round(bytes));
}

test "codes and links stay within every budget that is enough, and more memory never chooses fewer bits" {
    for ([_]u64{ 1, 1000, 1_000_000, 2_000_000_000 }) |rows| for ([_]u32{ 1, 128, 1536 }) |dim| {
        var bits: u32 = 0;
        for (1..101) |percent| {
            const budget = @max(1, rows * dim * 4 * percent / 100);
            const sizes: Sizes = .of(&.{ .row_count = rows, .dim = dim, .degree = 48, .memory_bytes = budget }, .f32);
            try std.testing.expect(sizes.memory_bits >= bits);
            bits = sizes.memory_bits;
            if (sizes.needed_bytes > budget) continue;
            try std.testing.expect(sizes.memory_codes_bytes + sizes.memory_links_bytes <= budget + 2);
            try std.testing.expect((sizes.page_codes_kept > 0) == (sizes.page_codes != 0));
        }
    };
}
