import unittest

from tally.amounts import parse


class Parse(unittest.TestCase):
    def test_whole_units(self):
        self.assertEqual(parse("12"), 1200)

    def test_two_decimals(self):
        self.assertEqual(parse("12.05"), 1205)

    def test_one_decimal_means_tens_of_cents(self):
        self.assertEqual(parse("12.5"), 1250)

    def test_words_are_no_amount(self):
        with self.assertRaises(ValueError):
            parse("twelve")
